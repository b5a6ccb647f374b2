// Checks manifests against the Go types of the gateways that read them, and compose files against their
// specification: an unknown field, a wrong type or an unknown name of an enum is an error.
//
//	manifest-check FILE…
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	contourv1 "github.com/projectcontour/contour/apis/projectcontour/v1"
	contourv1alpha1 "github.com/projectcontour/contour/apis/projectcontour/v1alpha1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istio "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	failed := false
	for _, file := range os.Args[1:] {
		if err := checkFile(file); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func checkFile(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.HasSuffix(file, "compose.yaml") {
		return checkCompose(file)
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		if err := checkManifest(document); err != nil {
			return err
		}
	}
	return nil
}

func checkCompose(file string) error {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithName("check"))
	if err != nil {
		return err
	}
	_, err = options.LoadProject(context.Background())
	return err
}

// istioObject is an object whose spec Istio defines as a Protobuf message.
type istioObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
}

func checkIstio(document []byte, spec proto.Message) error {
	var object istioObject
	if err := yaml.UnmarshalStrict(document, &object); err != nil {
		return err
	}
	return protojson.Unmarshal(object.Spec, spec)
}

func checkManifest(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "networking.istio.io/v1alpha3 EnvoyFilter":
		return checkIstio(document, &istio.EnvoyFilter{})
	case "networking.istio.io/v1 Gateway":
		return checkIstio(document, &istio.Gateway{})
	case "networking.istio.io/v1 VirtualService":
		return checkIstio(document, &istio.VirtualService{})
	case "projectcontour.io/v1 HTTPProxy":
		return yaml.UnmarshalStrict(document, &contourv1.HTTPProxy{})
	case "projectcontour.io/v1alpha1 ExtensionService":
		return yaml.UnmarshalStrict(document, &contourv1alpha1.ExtensionService{})
	case "projectcontour.io/v1alpha1 ContourConfiguration":
		return yaml.UnmarshalStrict(document, &contourv1alpha1.ContourConfiguration{})
	}
	return fmt.Errorf("no type is known for %s %s", kind.APIVersion, kind.Kind)
}
