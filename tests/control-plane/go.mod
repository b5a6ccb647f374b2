module tollkeeper/control-plane

go 1.26

require (
	github.com/envoyproxy/go-control-plane v0.14.1-0.20260729145720-a2d8c7492908
	github.com/envoyproxy/go-control-plane/envoy v1.37.1-0.20260729145720-a2d8c7492908
	github.com/envoyproxy/go-control-plane/ratelimit v0.1.1-0.20260729145720-a2d8c7492908
	google.golang.org/grpc v1.82.1
	google.golang.org/protobuf v1.36.11
)
