// chart checks Kubernetes manifests: kubeconform compares objects with the OpenAPI of a Kubernetes version, and the
// objects of the Prometheus operator are decoded into its own types. Unknown fields are errors.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/yannh/kubeconform/pkg/resource"
	"github.com/yannh/kubeconform/pkg/validator"
)

func main() {
	openAPI := flag.String("openapi", "", "swagger.json of Kubernetes")
	version := flag.String("kubernetes", "1.36.3", "version of Kubernetes that the file is of")
	overlay := flag.String("kustomize", "", "directory of a kustomization, which is built, checked and printed")
	flag.Parse()
	if err := run(*openAPI, *version, *overlay, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run checks the files, or else the kustomization, and prints the number of objects or the kustomization's text.
func run(openAPI, version, overlay string, files []string) error {
	dir, err := os.MkdirTemp("", "graylink-schemas")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := writeSchemas(openAPI, dir); err != nil {
		return err
	}
	v, err := validator.New([]string{dir + "/{{ .ResourceKind }}{{ .KindSuffix }}.json"}, validator.Opts{KubernetesVersion: version, Strict: true})
	if err != nil {
		return err
	}
	if overlay != "" {
		text, err := buildKustomization(overlay)
		if err != nil {
			return fmt.Errorf("%s: %w", overlay, err)
		}
		if _, err := check(v, overlay, text); err != nil {
			return err
		}
		_, err = os.Stdout.Write(text)
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		n, err := check(v, file, text)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d objects are valid\n", file, n)
	}
	return nil
}

// check returns the number of objects in the text, or what is wrong with them.
func check(v validator.Validator, name string, text []byte) (objects int, err error) {
	var wrong []string
	found, failed := resource.FromStream(context.Background(), name, bytes.NewReader(text))
	go func() {
		for err := range failed {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
	}()
	for r := range found {
		if len(bytes.TrimSpace(withoutComments(r.Bytes))) == 0 {
			continue
		}
		objects++
		signature, err := r.Signature()
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		if strings.HasPrefix(signature.Version, "monitoring.coreos.com/") {
			err = checkCustomResource(signature, r.Bytes)
		} else if result := v.ValidateResource(r); result.Status != validator.Valid {
			err = result.Err
		}
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %s %s: %v", name, signature.Kind, signature.Name, err))
		}
	}
	if len(wrong) > 0 {
		return 0, fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	if objects == 0 {
		return 0, fmt.Errorf("%s has no objects", name)
	}
	return objects, nil
}

// withoutComments returns the lines that are no comments. Helm writes the template's name above each document, also above
// those that turn out to be empty.
func withoutComments(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if t := bytes.TrimSpace(line); !bytes.HasPrefix(t, []byte("#")) && !bytes.Equal(t, []byte("---")) {
			out = append(out, line...)
		}
	}
	return out
}
