package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	gateway "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/api/v1alpha1/validation"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	routes "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// check decodes manifests by the Go types of their kinds. It returns the exit code.
func check(files []string) int {
	code := 0
	for _, file := range files {
		if err := checkFile(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			code = 1
		}
	}
	return code
}

func checkFile(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		if err := checkDocument(document); err != nil {
			return err
		}
	}
	return nil
}

// values are what the samples set of the values of Envoy Gateway's chart.
type values struct {
	Config struct {
		EnvoyGateway *gateway.EnvoyGateway `json:"envoyGateway"`
	} `json:"config"`
}

func checkDocument(document []byte) error {
	var kind meta.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "":
		return checkValues(document)
	case "EnvoyGateway":
		var config gateway.EnvoyGateway
		if err := yaml.UnmarshalStrict(document, &config); err != nil {
			return err
		}
		return validation.ValidateEnvoyGateway(&config)
	case "BackendTrafficPolicy":
		return yaml.UnmarshalStrict(document, &gateway.BackendTrafficPolicy{})
	case "HTTPRoute":
		return yaml.UnmarshalStrict(document, &routes.HTTPRoute{})
	case "ConfigMap":
		return checkConfigMap(document)
	case "Deployment":
		return yaml.UnmarshalStrict(document, &apps.Deployment{})
	case "Service":
		return yaml.UnmarshalStrict(document, &core.Service{})
	}
	return fmt.Errorf("no type is known for %s %s", kind.APIVersion, kind.Kind)
}

func checkValues(document []byte) error {
	var found values
	if err := yaml.UnmarshalStrict(document, &found); err != nil {
		return err
	}
	config := found.Config.EnvoyGateway
	if config == nil {
		return errors.New("neither a kind nor config.envoyGateway")
	}
	// The chart has these.
	config.SetEnvoyGatewayDefaults()
	return validation.ValidateEnvoyGateway(config)
}

// checkConfigMap checks a file of Envoy Gateway's configuration too.
func checkConfigMap(document []byte) error {
	var found core.ConfigMap
	if err := yaml.UnmarshalStrict(document, &found); err != nil {
		return err
	}
	for name, text := range found.Data {
		if !strings.Contains(text, "kind: EnvoyGateway") {
			continue
		}
		if err := checkDocument([]byte(text)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
