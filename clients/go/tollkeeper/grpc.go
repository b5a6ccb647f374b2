package tollkeeper

import (
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// UnaryInterceptor limits the unary calls of a gRPC server. The function says what a call of a method, such as
// "/package.Service/Method", is limited by; a call without descriptors is not limited.
//
// A denied call gets RESOURCE_EXHAUSTED with retry-after and the ratelimit headers as metadata and with RetryInfo, and
// UNAVAILABLE if Options.OnFailure has denied it.
func (c *Client) UnaryInterceptor(
	descriptors func(ctx context.Context, method string, request any) []Descriptor,
) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		setHeader := func(headers metadata.MD) error { return grpc.SetHeader(ctx, headers) }
		if err := c.admit(ctx, setHeader, descriptors(ctx, info.FullMethod, request)); err != nil {
			return nil, err
		}
		return next(ctx, request)
	}
}

// StreamInterceptor limits the streams of a gRPC server when they begin. See [Client.UnaryInterceptor].
func (c *Client) StreamInterceptor(
	descriptors func(ctx context.Context, method string) []Descriptor,
) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx := stream.Context()
		if err := c.admit(ctx, stream.SetHeader, descriptors(ctx, info.FullMethod)); err != nil {
			return err
		}
		return next(server, stream)
	}
}

func (c *Client) admit(ctx context.Context, setHeader func(metadata.MD) error, limited []Descriptor) error {
	if len(limited) == 0 {
		return nil
	}
	decision, err := c.decideForMiddleware(ctx, limited)
	if err != nil {
		c.mistake(ctx, err)
		return status.Error(codes.Internal, "internal error")
	}
	if err := setHeader(metadata.New(decision.Headers())); err != nil {
		return err
	}
	switch {
	case decision.Allowed:
		return nil
	case decision.Failed:
		return status.Error(codes.Unavailable, "rate limits are unavailable")
	}
	denial := status.New(codes.ResourceExhausted, "too many requests")
	if detailed, err := denial.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(decision.RetryAfter)}); err == nil && decision.RetryAfter > 0 {
		denial = detailed
	}
	return denial.Err()
}
