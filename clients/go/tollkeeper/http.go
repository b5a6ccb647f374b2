package tollkeeper

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Middleware limits handlers, as chi and others take it. The first function says what a request is limited by; a request
// without descriptors is not limited. The second one answers a request that is denied; if it is nil, the answer has
// [Decision.StatusCode] with its text. The RateLimit headers and Retry-After are set before.
//
// A mistake of the caller is logged, at most once a minute, and answered with 500.
func (c *Client) Middleware(
	descriptors func(*http.Request) []Descriptor, denied func(http.ResponseWriter, *http.Request, Decision),
) func(http.Handler) http.Handler {
	if denied == nil {
		denied = func(w http.ResponseWriter, _ *http.Request, decision Decision) { reply(w, decision.StatusCode()) }
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limited := descriptors(r)
			if len(limited) == 0 {
				next.ServeHTTP(w, r)
				return
			}
			decision, err := c.decideForMiddleware(r.Context(), limited)
			if err != nil {
				c.mistake(r.Context(), err)
				reply(w, http.StatusInternalServerError)
				return
			}
			for name, value := range decision.Headers() {
				w.Header().Set(name, value)
			}
			if decision.Allowed {
				next.ServeHTTP(w, r)
			} else {
				denied(w, r, decision)
			}
		})
	}
}

func reply(w http.ResponseWriter, code int) { http.Error(w, http.StatusText(code), code) }

// Address returns the address of a request's client, for a descriptor: of IPv6, the network of 64 bits, since a client has
// all of its addresses. In X-Forwarded-For, which clients may send, it believes only what the trusted proxies have added:
// the last address that is not one of theirs counts. Without proxies it is the peer of the connection.
func Address(r *http.Request, proxies ...netip.Prefix) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	client := peer.Addr().Unmap()
	isClient := func(proxy netip.Prefix) bool { return proxy.Contains(client) }
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && slices.ContainsFunc(proxies, isClient); i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			// Some proxies add the port.
			var withPort netip.AddrPort
			if withPort, err = netip.ParseAddrPort(strings.TrimSpace(hops[i])); err != nil {
				break
			}
			hop = withPort.Addr()
		}
		client = hop.Unmap()
	}
	if client.Is6() {
		return netip.PrefixFrom(client.WithZone(""), 64).Masked().String()
	}
	return client.String()
}
