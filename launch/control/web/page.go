package web

import (
	_ "embed"
	"net/http"
	"strings"
)

// The files of the page. It loads nothing from elsewhere.
var (
	//go:embed page/index.html
	indexHTML []byte
	//go:embed page/page.css
	pageCSS []byte
	//go:embed page/page.js
	pageJS []byte
	//go:embed page/grid.js
	gridJS []byte
	//go:embed page/chart.js
	chartJS []byte
	//go:embed page/icon.svg
	iconSVG []byte
	//go:embed page/login.html
	loginPage string
)

// file answers with one of the files, and reports whether there is one at a path.
func file(w http.ResponseWriter, path string) bool {
	kind := "text/javascript"
	var content []byte
	switch path {
	case pathPage:
		kind, content = "text/html", indexHTML
	case pathStyle:
		kind, content = "text/css", pageCSS
	case pathIcon:
		kind, content = "image/svg+xml", iconSVG
	case "/page.js":
		content = pageJS
	case "/grid.js":
		content = gridJS
	case "/chart.js":
		content = chartJS
	default:
		return false
	}
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	_, _ = w.Write(content) // who does not take it is gone
	return true
}

// askToken answers with the form that asks for the token, and says what was wrong with the last one.
func askToken(w http.ResponseWriter, status int, wrong string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(strings.Replace(loginPage, "<!-- wrong -->", wrong, 1)))
}
