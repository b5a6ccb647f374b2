module tollkeeper/envoy-gateway

go 1.26.7

require (
	github.com/envoyproxy/gateway v1.9.1
	github.com/tetratelabs/func-e v1.6.0
	k8s.io/api v0.36.3
	k8s.io/apimachinery v0.36.3
	sigs.k8s.io/gateway-api v1.6.1
	sigs.k8s.io/yaml v1.6.0
)
