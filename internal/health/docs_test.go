package health

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"muster/internal/check"
)

// TestDocsNameEveryCheck: docs/checks.md has a row for each check and no other, with the status and limit that it has.
func TestDocsNameEveryCheck(t *testing.T) {
	text, err := os.ReadFile("../../docs/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|(.*)$").FindAllStringSubmatch(string(text), -1) {
		rows[m[1]] = m[2]
	}
	var apart []byte
	for _, page := range []string{"node-probes", "network-check"} {
		more, err := os.ReadFile("../../docs/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		apart = append(apart, more...)
	}
	for _, id := range check.IDs() {
		if id.Apart {
			if !strings.Contains(string(apart), "`"+id.Name+"`") {
				t.Errorf("nothing is said of %s", id.Name)
			}
			continue
		}
		row, ok := rows[id.Name]
		if !ok {
			t.Errorf("no row for %s", id.Name)
			continue
		}
		delete(rows, id.Name)
		letter := map[check.Status]string{check.Warn: "W", check.Fail: "F"}[id.Default]
		if id.Name != "xid" && !strings.Contains(row, " "+letter+":") && !strings.HasSuffix(strings.Split(row, "|")[1], " "+letter+" ") {
			t.Errorf("%s: the row does not say %s: %s", id.Name, letter, row)
		}
		if id.Unit != "" && !strings.Contains(row, fmt.Sprintf("limit (%d", id.Limit)) &&
			!strings.Contains(row, fmt.Sprintf("(limit %d", id.Limit)) {
			t.Errorf("%s: the row does not tell the limit %d %s", id.Name, id.Limit, id.Unit)
		}
	}
	for name := range rows {
		t.Errorf("a row for %s, which is no check", name)
	}
	// The tables of Xid errors.
	numbers := func(row string) (list []int) {
		for w := range strings.FieldsSeq(strings.Split(row, "|")[1]) {
			n, err := strconv.Atoi(w)
			if err != nil {
				t.Errorf("%q in %s", w, row)
			}
			list = append(list, n)
		}
		return list
	}
	fatal := regexp.MustCompile(`(?m)^\| 46 .*$`).FindString(string(text))
	fine := regexp.MustCompile(`(?m)^\| 8 .*$`).FindString(string(text))
	if got := append(numbers(fatal), fellOff); !slices.Equal(sorted(got), sorted(xidFatal)) {
		t.Errorf("fatal: %v, in the code %v", got, xidFatal)
	}
	if got := numbers(fine); !slices.Equal(sorted(got), sorted(xidFine)) {
		t.Errorf("fine: %v, in the code %v", got, xidFine)
	}
}

func sorted(list []int) []int {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}
