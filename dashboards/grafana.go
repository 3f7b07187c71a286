// Package dashboards makes the Grafana dashboards. Each is a function of this package. The JSON that Grafana
// imports lies in json/ and is written by
//
//	go test ./dashboards -update
//
// The rules:
//
//  1. A dashboard is for one question at night, and its first panel answers it.
//  2. Every panel has a title that names what it shows, a text that explains how to read it,
//     and a unit.
//  3. Every series that a panel queries is exposed by the code or recorded by a rule.
//  4. While something is broken every panel shows data (test/e2e, TestAlerts).
//  5. The committed JSON is what the code makes.
package dashboards

// The structs below are the part of Grafana's dashboard schema (version 39, Grafana 10.4
// and later) that is used.

// Dashboard is what Grafana imports.
type Dashboard struct {
	UID           string      `json:"uid"`
	Title         string      `json:"title"`
	Description   string      `json:"description"`
	Tags          []string    `json:"tags"`
	SchemaVersion int         `json:"schemaVersion"`
	Refresh       string      `json:"refresh"`
	Time          TimeRange   `json:"time"`
	Templating    Templating  `json:"templating"`
	Annotations   Annotations `json:"annotations"`
	Links         []Link      `json:"links"`
	Panels        []Panel     `json:"panels"`
}

// TimeRange is the span that a dashboard shows at first.
type TimeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Templating holds the variables.
type Templating struct {
	List []Variable `json:"list"`
}

// Variable is a choice at the top of a dashboard.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Datasource *Datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh,omitempty"`
	IncludeAll bool        `json:"includeAll"`
	AllValue   string      `json:"allValue,omitempty"`
	Multi      bool        `json:"multi"`
	Sort       int         `json:"sort,omitempty"`
}

// Annotations holds the annotations.
type Annotations struct {
	List []Annotation `json:"list"`
}

// Annotation is drawn across the time series of a dashboard.
type Annotation struct {
	Name       string     `json:"name"`
	Datasource Datasource `json:"datasource"`
	Enable     bool       `json:"enable"`
	IconColor  string     `json:"iconColor"`
	Expr       string     `json:"expr"`
	TitleText  string     `json:"titleFormat"`
	Step       string     `json:"step"`
}

// Link leads to the other dashboards.
type Link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Tags        []string `json:"tags"`
	AsDropdown  bool     `json:"asDropdown"`
	KeepTime    bool     `json:"keepTime"`
	IncludeVars bool     `json:"includeVars"`
}

// Datasource is the Prometheus that is queried.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Panel is one graph, table or number of a dashboard.
type Panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description"`
	GridPos         GridPos          `json:"gridPos"`
	Datasource      Datasource       `json:"datasource"`
	Targets         []Target         `json:"targets"`
	FieldConfig     FieldConfig      `json:"fieldConfig"`
	Options         map[string]any   `json:"options,omitempty"`
	Transformations []Transformation `json:"transformations,omitempty"`
}

// GridPos is a place on a grid 24 wide.
type GridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// Target is a query of a panel.
type Target struct {
	RefID        string     `json:"refId"`
	Datasource   Datasource `json:"datasource"`
	Expr         string     `json:"expr"`
	LegendFormat string     `json:"legendFormat,omitempty"`
	Format       string     `json:"format,omitempty"`
	Instant      bool       `json:"instant,omitempty"`
	Range        bool       `json:"range,omitempty"`
}

// FieldConfig states how values are written and coloured.
type FieldConfig struct {
	Defaults  Defaults `json:"defaults"`
	Overrides []any    `json:"overrides"`
}

// Defaults hold for every field of a panel.
type Defaults struct {
	Unit       string         `json:"unit"`
	Thresholds *Thresholds    `json:"thresholds,omitempty"`
	Custom     map[string]any `json:"custom,omitempty"`
}

// Thresholds colour values from a bound upwards.
type Thresholds struct {
	Mode  string `json:"mode"`
	Steps []Step `json:"steps"`
}

// Step is a colour; Value is nil for the lowest.
type Step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// Transformation changes the answers before they are shown.
type Transformation struct {
	ID      string         `json:"id"`
	Options map[string]any `json:"options"`
}

var datasource = Datasource{"prometheus", "${datasource}"}

const tag = "graylink"

// newDashboard returns a dashboard with its panels laid out from the left to the right, in the order given.
func newDashboard(uid, title, description string, variables []Variable, panels ...Panel) Dashboard {
	d := Dashboard{UID: "graylink-" + uid, Title: "Graylink: " + title, Description: description, Tags: []string{tag}, SchemaVersion: 39,
		Refresh: "5s", Time: TimeRange{"now-30m", "now"},
		Templating: Templating{append([]Variable{{Name: "datasource", Label: "Prometheus", Type: "datasource", Query: "prometheus"}}, variables...)},
		Annotations: Annotations{[]Annotation{{Name: "verdicts", Datasource: datasource, Enable: true, IconColor: "red", Step: "1s",
			Expr: "fabric:suspect:score", TitleText: "{{kind}} {{element}}"}}},
		Links: []Link{{Title: "Graylink", Type: "dashboards", Tags: []string{tag}, AsDropdown: true, KeepTime: true}}}
	x, y, high := 0, 0, 0
	for i, p := range panels {
		if x+p.GridPos.W > 24 {
			x, y, high = 0, y+high, 0
		}
		p.ID, p.GridPos.X, p.GridPos.Y, p.Datasource = i+1, x, y, datasource
		x, high = x+p.GridPos.W, max(high, p.GridPos.H)
		for j := range p.Targets {
			p.Targets[j].RefID, p.Targets[j].Datasource = string(rune('A'+j)), datasource
		}
		if p.FieldConfig.Overrides == nil {
			p.FieldConfig.Overrides = []any{}
		}
		d.Panels = append(d.Panels, p)
	}
	return d
}

// labelVariable returns a variable with the values of a series' label.
func labelVariable(name, label, series, of string) Variable {
	return Variable{Name: name, Label: label, Type: "query", Query: "label_values(" + series + ", " + of + ")", Datasource: &datasource,
		Refresh: 2, IncludeAll: true, AllValue: ".*", Multi: true, Sort: 1}
}

func rangeTarget(expr, legend string) Target {
	return Target{Expr: expr, LegendFormat: legend, Range: true}
}

func instantTarget(expr, legend string) Target {
	return Target{Expr: expr, LegendFormat: legend, Instant: true}
}

func newPanel(kind, title, description, unit string, w, h int, targets ...Target) Panel {
	return Panel{Type: kind, Title: title, Description: description, GridPos: GridPos{W: w, H: h}, Targets: targets, FieldConfig: FieldConfig{Defaults: Defaults{Unit: unit}}}
}

// timeSeriesPanel returns a panel of values over time. Lines are not drawn across a gap.
func timeSeriesPanel(title, description, unit string, w int, targets ...Target) Panel {
	p := newPanel("timeseries", title, description, unit, w, 8, targets...)
	p.FieldConfig.Defaults.Custom = map[string]any{"spanNulls": false, "fillOpacity": 5}
	p.Options = map[string]any{"legend": map[string]any{"displayMode": "table", "placement": "right", "calcs": []string{"lastNotNull", "max"}}, "tooltip": map[string]any{"mode": "multi", "sort": "desc"}}
	return p
}

// statPanel returns a panel of one large value, green below bad and red from there on.
func statPanel(title, description, unit string, w int, bad float64, target Target) Panel {
	p := newPanel("stat", title, description, unit, w, 4, target)
	p.FieldConfig.Defaults.Thresholds = &Thresholds{"absolute", []Step{{"green", nil}, {"red", &bad}}}
	p.Options = map[string]any{"colorMode": "background", "reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}}}
	return p
}

// statPanelAtLeast returns a panel of one large value, red below enough and green from there on.
func statPanelAtLeast(title, description, unit string, w int, enough float64, target Target) Panel {
	p := statPanel(title, description, unit, w, enough, target)
	p.FieldConfig.Defaults.Thresholds.Steps = []Step{{"red", nil}, {"green", &enough}}
	return p
}

// tablePanel returns a panel that shows labels as columns, without the hidden ones.
func tablePanel(title, description, unit string, w, h int, value string, target Target, hidden ...string) Panel {
	target.Format, target.Instant, target.Range = "table", true, false
	p := newPanel("table", title, description, unit, w, h, target)
	exclude := map[string]bool{"Time": true, "__name__": true, "job": true}
	for _, l := range hidden {
		exclude[l] = true
	}
	if value == "" {
		exclude["Value"] = true
	}
	p.Transformations = []Transformation{{"organize", map[string]any{"excludeByName": exclude, "renameByName": map[string]string{"Value": value}}}}
	return p
}

// heatmapPanel returns a panel of a native histogram over time.
func heatmapPanel(title, description string, w int, expr string) Panel {
	t := rangeTarget(expr, "")
	t.Format = "heatmap"
	p := newPanel("heatmap", title, description, "s", w, 9, t)
	p.Options = map[string]any{"calculate": false, "yAxis": map[string]any{"unit": "s"}, "color": map[string]any{"mode": "scheme", "scheme": "Oranges", "steps": 64}}
	return p
}
