package dialect_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"muster/cmd/dialect"
)

// otherMaps are maps that are not by the names of options, as they are called in this package.
var otherMaps = []string{"conf", "Conf", "Values", "sections", "known", "deepSpeedAccelerators"}

// TestLookUpsNameOptions: each name by which a reader looks up an option or a setting is the name of one. Of a name that there is not
// a map has the zero value, as if nothing had been given.
func TestLookUpsNameOptions(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, name := range append(dialect.Names(), "") {
		flags := dialect.OwnFlags()
		if name != "" {
			flags = dialect.Flags(name)
		}
		flags.VisitAll(func(f *pflag.Flag) {
			names[f.Name], names[strings.ReplaceAll(f.Name, "-", "_")] = true, true
		})
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			var by ast.Expr
			switch n := n.(type) {
			case *ast.IndexExpr:
				if !slices.Contains(otherMaps, lastName(n.X)) {
					by = n.Index
				}
			case *ast.CallExpr:
				if lastName(n.Fun) == "fill" {
					by = n.Args[0]
				}
			}
			key, ok := by.(*ast.BasicLit)
			if !ok || key.Kind != token.STRING {
				return true
			}
			name, err := strconv.Unquote(key.Value)
			if err != nil || name == strings.ToUpper(name) { // a variable of the environment
				return true
			}
			if seen++; !names[name] {
				t.Errorf("%s: there is no option and no setting %s", set.Position(key.Pos()), key.Value)
			}
			return true
		})
	}
	if seen < 100 {
		t.Errorf("only %d names were found", seen)
	}
}

// lastName is what an expression is called, such as values for t.in.values.
func lastName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}
