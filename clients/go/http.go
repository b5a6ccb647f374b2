package tollkeeper

import (
	"net/http"
	"strconv"
	"time"
)

// Handler limits a handler. The function says what a request is limited by; a request without descriptors is not limited.
//
// A denied request gets 429 with Retry-After and the RateLimit headers, and 503 if Options.OnFailure has denied it.
func (c *Client) Handler(next http.Handler, descriptors func(*http.Request) []Descriptor) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited := descriptors(r)
		if len(limited) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		decision, err := c.Decide(r.Context(), limited...)
		for name, value := range decision.Headers() {
			w.Header().Set(name, value)
		}
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case decision.Allowed:
			next.ServeHTTP(w, r)
		case decision.Failed:
			http.Error(w, "rate limits are unavailable", http.StatusServiceUnavailable)
		default:
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		}
	})
}

// Headers for a response of your own: the RateLimit headers if a limit applies, and Retry-After if the service has denied
// the call. Times are in seconds.
func (d *Decision) Headers() map[string]string {
	headers := map[string]string{}
	if d.Limit != nil {
		headers["RateLimit-Limit"] = strconv.FormatInt(d.Limit.Hits, 10)
		headers["RateLimit-Remaining"] = strconv.FormatInt(d.Remaining, 10)
		headers["RateLimit-Reset"] = seconds(d.Reset)
	}
	if d.RetryAfter > 0 {
		headers["Retry-After"] = seconds(d.RetryAfter)
	}
	return headers
}

// seconds rounds up, since a call that comes too early is denied.
func seconds(duration time.Duration) string {
	return strconv.FormatInt(int64((duration+time.Second-1)/time.Second), 10)
}
