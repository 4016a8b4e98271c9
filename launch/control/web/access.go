package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// access decides who has proven what.
type access struct {
	loopback bool
	// digest is of the token, cookie what a browser shows in its place, under name; nil and empty: there is no token.
	digest       []byte
	cookie, name string
}

// newAccess is for a job with a token, of the muster with a run directory: cookies do not tell the ports of a host
// apart.
func newAccess(token []byte, runDir string, loopback bool) access {
	of := sha256.Sum256([]byte(runDir))
	a := access{loopback: loopback, name: "muster-" + hex.EncodeToString(of[:6])}
	if len(token) == 0 {
		return a
	}
	digest := sha256.Sum256(token)
	a.digest = digest[:]
	mac := hmac.New(sha256.New, token)
	mac.Write([]byte("muster page " + a.name))
	a.cookie = hex.EncodeToString(mac.Sum(nil))
	return a
}

// is reports whether a text is the token.
func (a *access) is(text string) bool {
	digest := sha256.Sum256([]byte(strings.TrimSpace(text)))
	return a.digest != nil && subtle.ConstantTimeCompare(digest[:], a.digest) == 1
}

// proven reports whether a request shows the token.
func (a *access) proven(r *http.Request) bool {
	if token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); bearer {
		return a.is(token)
	}
	c, err := r.Cookie(a.name)
	return err == nil && a.cookie != "" && subtle.ConstantTimeCompare([]byte(c.Value), []byte(a.cookie)) == 1
}

// sameOrigin reports whether a request comes from the page itself, or from a program that has the token in its hand,
// which a browser sends for no other site.
func (a *access) sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}

// hostKnown reports whether a request is for a name of this server: on loopback, where no token is asked for, another
// site's name that leads to 127.0.0.1 would let that site read.
func (a *access) hostKnown(hostport string) bool {
	if !a.loopback {
		return true
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// login takes a token by a form, or in the address, and gives a cookie for it.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	var given string
	to := url.URL{Path: r.URL.Path}
	switch {
	case r.URL.Path != pathLogin:
		query := r.URL.Query()
		given = query.Get("token")
		query.Del("token")
		to.RawQuery = query.Encode()
	case r.Method == http.MethodPost && s.access.formOfOurs(r):
		r.Body = http.MaxBytesReader(w, r.Body, mostBody)
		given, to.Path = r.PostFormValue("token"), pathPage
	case r.Method == http.MethodPost:
		fail(w, http.StatusForbidden, "the form does not come from this page", "")
		return
	default:
		askToken(w, http.StatusOK, "")
		return
	}
	if !s.access.is(given) {
		askToken(w, http.StatusUnauthorized, "This is not the token of the job.")
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: s.access.name, Value: s.access.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
	})
	if !strings.HasPrefix(to.Path, "/") || strings.HasPrefix(to.Path, "//") {
		to.Path = pathPage
	}
	w.Header().Set("Location", to.RequestURI())
	w.WriteHeader(http.StatusSeeOther)
}

// formOfOurs reports whether a form was sent by our own page.
func (a *access) formOfOurs(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin" || site == "none"
	}
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && (u.Host == "" || u.Host == r.Host)
}

// unproven answers who has to show the token first.
func (s *Server) unproven(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="muster"`)
	switch {
	case (r.URL.Path == pathStyle || r.URL.Path == pathIcon) && file(w, r.URL.Path): // of the form
	case s.access.digest == nil:
		fail(w, http.StatusForbidden, "this job belongs to another user", "")
	case r.URL.Path == pathPage && r.Method == http.MethodGet:
		askToken(w, http.StatusUnauthorized, "")
	default:
		fail(w, http.StatusUnauthorized, "the job's token is asked for", "send Authorization: Bearer TOKEN, or log in at "+pathLogin)
	}
}
