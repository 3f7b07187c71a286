package evidence

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestParseHistograms(t *testing.T) {
	vector := func(result string) string {
		return `{"status":"success","data":{"resultType":"vector","result":` + result + `}}`
	}
	const good = `{"metric":{"a":"b"},"histogram":[1.5,{"count":"3","sum":"0.5","buckets":[[3,"-0.1","0.1","1"],[0,"0.1","0.2","2"]]}]}`
	for text, want := range map[string]string{
		vector(`[` + good + `,{"metric":{},"value":[1,"2"]}]`):                                                       "",
		vector(`[{"metric":{},"histogram":[1]}]`):                                                                    "one is expected",
		vector(`[{"metric":{},"histogram":[1,null]}]`):                                                               "one is expected",
		vector(`[{"metric":{},"histogram":[1,"x"]}]`):                                                                "one is expected",
		vector(`[{"metric":{},"histogram":[1,{"count":"x","sum":"0","buckets":[]}]}]`):                               `the count "x"`,
		vector(`[{"metric":{},"histogram":[1,{"count":"1","sum":"x","buckets":[]}]}]`):                               `the sum "x"`,
		vector(`[{"metric":{},"histogram":[1,{"count":"1","sum":"1","buckets":[[0,"1","2"]]}]}]`):                    "the bucket",
		vector(`[{"metric":{},"histogram":[1,{"count":"1","sum":"1","buckets":[[0,"1","2","x"]]}]}]`):                "the bucket",
		vector(`[{"metric":{},"histogram":[1,{"count":"1","sum":"1","buckets":[["0","1","2","3"]]}]}]`):              "the bucket",
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`:                                            "want vector",
		`{"status":"error","errorType":"execution","error":"vector contains a mix of histograms and float samples"}`: "a mix",
		strings.Replace(vector(`[`+good+`]`), `"status"`, `"warnings":["a store is away"],"status"`, 1):              "a store is away",
	} {
		got, err := parseHistograms(strings.NewReader(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		var partial *PartialError
		if holds := err == nil || errors.As(err, &partial); holds != (len(got) == 1) {
			t.Errorf("%s: %d histograms with %v", text, len(got), err)
		}
		whole := Histogram{map[string]string{"a": "b"}, 3, 0.5, []Bucket{{-0.1, 0.1, 1}, {0.1, 0.2, 2}}}
		if want == "" && !reflect.DeepEqual(got, []Histogram{whole}) {
			t.Errorf("%+v, want %+v", got, whole)
		}
	}
}

func FuzzParseHistograms(f *testing.F) {
	f.Add(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{"count":"3","sum":"5","buckets":[[0,"0.1","0.2","3"]]}]}]}}`)
	f.Add(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{}]}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseHistograms(strings.NewReader(text))
		var partial *PartialError
		if err != nil && !errors.As(err, &partial) && v != nil {
			t.Errorf("histograms of an answer that is none: %v, %v", v, err)
		}
	})
}
