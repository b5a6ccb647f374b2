module tollkeeper/manifest-check

go 1.26.0

require (
	github.com/compose-spec/compose-go/v2 v2.16.2
	github.com/projectcontour/contour v1.33.8
	google.golang.org/protobuf v1.36.12
	istio.io/api v1.31.1
	k8s.io/apimachinery v0.34.12
	sigs.k8s.io/yaml v1.6.0
)
