package main

import (
	"errors"
	"fmt"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	monitoringv1alpha1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1alpha1"
	"github.com/yannh/kubeconform/pkg/resource"
	"sigs.k8s.io/yaml"
)

// checkCustomResource decodes an object of the Prometheus operator into the operator's own type. Unknown fields, wrong types
// and what the types themselves find invalid are errors.
func checkCustomResource(signature *resource.Signature, text []byte) error {
	if signature.Name == "" {
		return errors.New("the object has no name")
	}
	switch signature.GroupVersionKind() {
	case "monitoring.coreos.com/v1/PodMonitor":
		var o monitoringv1.PodMonitor
		return yaml.UnmarshalStrict(text, &o)
	case "monitoring.coreos.com/v1/ServiceMonitor":
		var o monitoringv1.ServiceMonitor
		return yaml.UnmarshalStrict(text, &o)
	case "monitoring.coreos.com/v1/PrometheusRule":
		var o monitoringv1.PrometheusRule
		return yaml.UnmarshalStrict(text, &o)
	case "monitoring.coreos.com/v1alpha1/ScrapeConfig":
		var o monitoringv1alpha1.ScrapeConfig
		return yaml.UnmarshalStrict(text, &o)
	}
	return fmt.Errorf("the kind %s has no type here", signature.GroupVersionKind())
}
