package tollkeeper_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
	"github.com/tollkeeper/tollkeeper/clients/go/tollkeepertest"
)

// In a program, New makes the client. Here, a service in memory admits two hits.
func ExampleClient_Decide() {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	service.Limit(2, tollkeeper.On("user", "alice"))
	for range 3 {
		decision, err := client.Decide(context.Background(), tollkeeper.On("user", "alice"))
		fmt.Println(decision.StatusCode(), decision.Remaining, err)
	}
	// Output:
	// 200 1 <nil>
	// 200 0 <nil>
	// 429 0 <nil>
}

func ExampleClient_Middleware() {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	service.Limit(1, tollkeeper.On("route", "GET /users/{id}"))
	limit := client.Middleware(func(r *http.Request) []tollkeeper.Descriptor {
		return []tollkeeper.Descriptor{tollkeeper.On("route", r.Pattern)}
	}, nil)
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", limit(http.NotFoundHandler()))
	for range 2 {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest("GET", "/users/7", nil))
		fmt.Println(answer.Code, answer.Header()["Ratelimit-Remaining"])
	}
	// Output:
	// 404 [0]
	// 429 [0]
}
