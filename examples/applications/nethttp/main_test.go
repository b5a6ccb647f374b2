package main

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
	"github.com/tollkeeper/tollkeeper/clients/go/tollkeepertest"
	"google.golang.org/grpc/codes"
)

func TestLoginsAndReportsAreLimited(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	service.Limit(5, tollkeeper.On("route", "/login").And("user", "alice"))
	service.Limit(1, tollkeeper.On("user", "alice"))
	shop := routes(client)
	serve := func(method, path, body string) int {
		request, answer := httptest.NewRequest(method, path, strings.NewReader(body)), httptest.NewRecorder()
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Authorization", "bearer key-of-alice")
		shop.ServeHTTP(answer, request)
		return answer.Code
	}
	guess := func() int { return serve("POST", "/login", "user=alice&password=guess") }
	report := func() int { return serve("GET", "/reports", "") }
	answers := []int{guess(), guess(), guess(), guess(), guess(), guess(), report(), report()}
	service.Fail(codes.Unavailable)
	answers = append(answers, guess(), report())
	if expected := []int{401, 401, 401, 401, 401, 429, 200, 429, 503, 200}; !slices.Equal(answers, expected) {
		t.Errorf("%v, not %v", answers, expected)
	}
}
