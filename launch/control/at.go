package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"muster/internal/errhint"
	"muster/internal/printable"
)

// page is where a job serves its page, and what is shown there.
type page struct {
	base  *url.URL
	token string
}

// At returns a client of the page of a job (--http) at an address: HOST:PORT, or a URL with http or https. The token
// goes with each request; empty: none does. Its error has status 2 where the address is none.
func At(address, token string) (*Client, error) {
	text := address
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.Scheme == "http" && u.Port() == "" {
		return nil, errhint.With(errhint.Usagef("--at %q is no address of a page", printable.Output(address)),
			"give HOST:PORT, as the log of the job with --http tells it")
	}
	return &Client{dir: u.Host, page: &page{base: &url.URL{Scheme: u.Scheme, Host: u.Host}, token: token}}, nil
}

// FindAt asks a client of a page for the job that it belongs to. A name is compared with its run id, of which it may be
// the beginning: its error has status 2 where that is another job.
func FindAt(ctx context.Context, c *Client, name string) (Found, error) {
	a, err := c.Status(ctx, World)
	if err != nil {
		return Found{}, err
	}
	if !strings.HasPrefix(a.RunID, name) {
		return Found{}, errhint.With(errhint.Usagef("the job at %s is %s, and not %q", c.dir, printable.Output(a.RunID), name),
			"leave the name out, or give the address of the other job's page")
	}
	return Found{Dir: a.Muster.RunDir, PID: a.Muster.PID, Answer: &a, client: c}, nil
}

// address is the URL of a path of the control socket on the page.
func (p *page) address(path string) (string, error) {
	path, query, _ := strings.Cut(path, "?")
	switch path {
	case pathStatus, pathEvents, pathStop, pathRestart, pathPause, pathResume, pathScale, pathKill:
	case pathMetrics:
		path = "/metrics"
	default:
		return "", errhint.Usagef("a page does not answer %s", path)
	}
	u := *p.base
	u.Path, u.RawQuery = path, query
	return u.String(), nil
}

// show says who asks.
func (p *page) show(req *http.Request) {
	req.Header.Set("Accept", "application/json")
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
}

// refused is why a page has answered with another status than 200, in its own words where it has said some.
func (p *page) refused(resp *http.Response, f failure) error {
	why := fmt.Errorf("the page at %s has answered %s", p.base.Host, resp.Status)
	if f.Error != "" {
		why = fmt.Errorf("the page at %s: %s", p.base.Host, printable.Output(f.Error))
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden && p.token == "":
		return errhint.Code(errhint.With(why, "give the job's token by --token-file FILE"), errhint.Usage)
	case f.Status != 0:
		return errhint.Code(errhint.With(why, printable.Output(f.Hint)), f.Status)
	case resp.StatusCode == http.StatusServiceUnavailable:
		return errhint.Code(errhint.With(why, printable.Output(f.Hint)), errhint.TryAgain)
	}
	return errhint.Code(errhint.With(why, printable.Output(f.Hint)), errhint.Usage)
}

// errNoPage is why nobody answers at an address, as when the job has ended.
var errNoPage = errors.New("no page is served")

// silent is why a page was not reached.
func (p *page) silent(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		err = errSilent
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if op, is := errors.AsType[*net.OpError](err); is && op.Op == "dial" {
		return errhint.Code(errhint.With(fmt.Errorf("%w at %s: %w", errNoPage, p.base.Host, op.Err),
			"the log of a job that was started with --http tells its address; the page ends with the job"), errhint.Usage)
	}
	return errhint.Code(fmt.Errorf("the page at %s does not answer: %w: %w", p.base.Host, errEnded, err), errhint.TryAgain)
}
