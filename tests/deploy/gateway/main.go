// A real Envoy Gateway without Kubernetes, for tests/envoy-gateway: its own commands `certgen` and `server`. Rather than
// start Envoy, it writes the arguments for it to the file that ENVOY_ARGUMENTS names: the Envoy of the tests outlives it,
// as one in another pod would. And `check`, for the samples of the documentation:
//
//	envoy-gateway check FILE…   refuses unknown fields, and a configuration that Envoy Gateway would refuse
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/envoyproxy/gateway/cmd/envoy-gateway/root"
	"github.com/tetratelabs/func-e/api"
	"github.com/tetratelabs/func-e/experimental/middleware"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "check" {
		os.Exit(check(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	command := root.GetRootCommand(func(runner string, err error) {
		fmt.Fprintf(os.Stderr, "runner %s failed: %v\n", runner, err)
	})
	if err := command.ExecuteContext(middleware.WithRunMiddleware(ctx, writeArguments)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// writeArguments takes the place of running Envoy, and ends when Envoy should.
func writeArguments(api.RunFunc) api.RunFunc {
	return func(ctx context.Context, arguments []string, _ ...api.RunOption) error {
		file := os.Getenv("ENVOY_ARGUMENTS")
		text, err := json.Marshal(arguments)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file+".new", text, 0o600); err != nil {
			return err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
}
