package pki

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Names of the gauges that publish expiries.
const (
	ExpirySeries = "graylink_certificate_expiry_timestamp_seconds"
	LifeSeries   = "graylink_certificate_lifetime_seconds"
)

// ExpiryGauge is a gauge that publishes something of a certificate in use, with the labels of ExpiryLabels.
type ExpiryGauge struct {
	Name, Help string
	Value      func(Expiry) float64
}

// ExpiryGauges are the gauges that every program publishes of every certificate in use.
var ExpiryGauges = []ExpiryGauge{
	{ExpirySeries, "Time at which a certificate in use ends, by its file, use and serial number.", func(e Expiry) float64 { return float64(e.At.Unix()) }},
	{LifeSeries, "Time from the begin of a certificate in use to its end, by its file, use and serial number.", func(e Expiry) float64 { return e.Life.Seconds() }},
}

// ExpiryLabels returns the names of the labels, in the order of Expiry.Labels.
func ExpiryLabels() []string { return []string{"file", "use", "serial"} }

// Uses of certificates.
const (
	UseAuthority   = "authority"   // the other side's certificate must come from it
	UseCertificate = "certificate" // it is shown to the other side, or leads from that to an authority
)

// Expiry is the end of a certificate in use.
type Expiry struct {
	File, Use string
	Serial    string // hexadecimal
	At        time.Time
	Life      time.Duration // from its begin to At
}

// EndsSoon reports whether a certificate has less than a week left, and less than a quarter of its life: certificates of
// a week are renewed after two thirds of it.
func (e Expiry) EndsSoon(now time.Time) bool {
	left := e.At.Sub(now)
	return left < 7*24*time.Hour && left < e.Life/4
}

// Labels returns the values of the labels of ExpiryLabels.
func (e Expiry) Labels() []string { return []string{e.File, e.Use, e.Serial} }

// Source lists certificates in use. It is safe for concurrent use.
type Source interface {
	Expiries() []Expiry
}

// Expiries returns the certificates of all sources, each combination of file, use and serial number
// once. A source may be nil.
func Expiries(sources ...Source) []Expiry {
	var all []Expiry
	for _, s := range sources {
		if s != nil {
			all = append(all, s.Expiries()...)
		}
	}
	return distinct(all)
}

// distinct removes repetitions. Different authorities may use one serial number: the certificate that ends first is kept.
func distinct(all []Expiry) []Expiry {
	type key struct{ file, use, serial string }
	at := make(map[key]int, len(all))
	var out []Expiry
	for _, e := range all {
		k := key{e.File, e.Use, e.Serial}
		i, known := at[k]
		switch {
		case !known:
			at[k] = len(out)
			out = append(out, e)
		case e.At.Before(out[i].At):
			out[i] = e
		}
	}
	return out
}

// Limits of what is read and kept of a file. An operating system has about 150 certificates, in 250 kB.
const (
	maxFileBytes        = 4 << 20
	maxFileCertificates = 256
)

// expiries returns when the certificates of a file end. If there are more than maxFileCertificates, it
// returns those that end first.
func expiries(file, use string, certificates []*x509.Certificate) []Expiry {
	out := make([]Expiry, 0, len(certificates))
	for _, c := range certificates {
		out = append(out, Expiry{file, use, serialText(c.SerialNumber), c.NotAfter, c.NotAfter.Sub(c.NotBefore)})
	}
	out = distinct(out)
	if len(out) > maxFileCertificates {
		slices.SortFunc(out, func(a, b Expiry) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Serial, b.Serial)) })
		out = slices.Clip(slices.Clone(out[:maxFileCertificates]))
	}
	return out
}

// parseCertificates returns the certificates among the PEM blocks of a file. Other blocks, such as keys, and certificates
// that cannot be parsed are skipped, as x509.CertPool does.
func parseCertificates(text []byte) (out []*x509.Certificate) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return out
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
}

// CertificateFile is the name of a PEM file of certificates, with their use. An empty name means that
// there are none, for example because the authorities are those of the operating system.
type CertificateFile struct {
	Name string
	Use  string // UseAuthority or UseCertificate
	// Text, if not empty, is the PEM text of certificates that are part of the file Name, such as a
	// configuration. The file is not read then.
	Text string
}

// FilesOf returns the two files of one side's TLS: that of authorities, and that of the own certificate. Either name may
// be empty.
func FilesOf(authority, certificate string) []CertificateFile {
	return []CertificateFile{{Name: authority, Use: UseAuthority}, {Name: certificate, Use: UseCertificate}}
}

// Watch is a Source of certificates that another package uses by their files. It reads a file again
// when the file has changed. A file that is missing or cannot be read has no expiries: the package that
// uses it for TLS reports the error. Keys are not parsed.
type Watch struct {
	list func() []CertificateFile

	mu   sync.Mutex
	read map[fileUse]readFile
}

// fileUse identifies a file and its use.
type fileUse struct{ name, use string }

// readFile is the content of a file at the time of its stamp.
type readFile struct {
	stamp    fileStamp
	expiries []Expiry
}

// NewWatch returns a Watch of files.
func NewWatch(files ...CertificateFile) *Watch {
	return NewWatchOf(func() []CertificateFile { return files })
}

// NewWatchOf returns a Watch of the files that list returns at each request. The calls of list do not
// overlap.
func NewWatchOf(list func() []CertificateFile) *Watch { return &Watch{list: list} }

// Expiries implements Source.
func (w *Watch) Expiries() []Expiry {
	w.mu.Lock()
	defer w.mu.Unlock()
	files := w.list()
	read := make(map[fileUse]readFile, len(files)) // files that are no longer listed are forgotten
	var all []Expiry
	for _, f := range files {
		if f.Name == "" {
			continue
		}
		if f.Text != "" {
			all = append(all, expiries(f.Name, f.Use, parseCertificates([]byte(f.Text)))...)
			continue
		}
		key := fileUse{f.Name, f.Use}
		r, ok := read[key]
		if !ok {
			if r, ok = w.refresh(key); !ok {
				continue
			}
			read[key] = r
		}
		all = append(all, r.expiries...)
	}
	w.read = read
	return distinct(all)
}

// refresh returns the present content of a file. It reads the file if it has changed since the last
// call, and returns false if the file cannot be read.
func (w *Watch) refresh(key fileUse) (readFile, bool) {
	s, err := statFile(key.name)
	// Opening a pipe would wait for a writer.
	if err != nil || !s.file.Mode().IsRegular() {
		return readFile{}, false
	}
	if was, ok := w.read[key]; ok && was.stamp.equal(s) {
		return was, true
	}
	f, err := os.Open(key.name)
	if err != nil {
		return readFile{}, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	if err != nil {
		return readFile{}, false
	}
	return readFile{s, expiries(key.name, key.use, parseCertificates(text))}, true
}

// fileStamp identifies the state of a file.
type fileStamp struct {
	modified time.Time
	size     int64
	file     os.FileInfo
}

func (s fileStamp) equal(o fileStamp) bool {
	return s.file != nil && o.file != nil && s.modified.Equal(o.modified) && s.size == o.size && os.SameFile(s.file, o.file)
}

func statFile(name string) (fileStamp, error) {
	info, err := os.Stat(name)
	if err != nil {
		return fileStamp{}, err
	}
	return fileStamp{info.ModTime(), info.Size(), info}, nil
}
