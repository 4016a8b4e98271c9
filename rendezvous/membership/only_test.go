package membership_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOnlyRecordsTouchTheStore: what agents tell each other goes through the codec because nothing but records.go has
// calls of a store. The exceptions have names: ids.go, whose list of run ids is for people, and the wait for keys of
// torchrun's agents.
func TestOnlyRecordsTouchTheStore(t *testing.T) {
	methods := []string{
		"Set", "Get", "Add", "CompareAndSet", "Delete", "Check", "Wait", "MultiSet", "MultiGet", "Append", "QueuePush",
		"QueuePop", "Reserve",
	}
	allowed := map[string]string{"ids.go": "", "round.go": "Wait"}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	calls := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			method, is := call.Fun.(*ast.SelectorExpr)
			if !is || !slices.Contains(methods, method.Sel.Name) || len(call.Args) < 2 && method.Sel.Name != "Reserve" {
				return true // those of a store take a context and a key
			}
			if of, is := method.X.(*ast.Ident); is && of.Name == "slices" {
				return true
			}
			calls[file]++
			if only, is := allowed[file]; file != "records.go" && (!is || only != "" && only != method.Sel.Name) {
				t.Errorf("%s: a call of %s: go through records", fset.Position(call.Pos()), method.Sel.Name)
			}
			return true
		})
	}
	if calls["records.go"] < 10 || calls["ids.go"] == 0 || calls["round.go"] != 1 {
		t.Errorf("calls of a store by file: %v", calls)
	}
}
