package job_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// module is the program as the compiler sees it, and what it does with the fields of structs.
type module struct {
	fset   *token.FileSet
	types  map[string]*types.Package // the packages of the module, by their paths
	export map[string]string         // files with what a package exports
	// read are the fields that are read, copied those that are only handed on to other fields. Keys are
	// package.Type.Field.
	read   map[string]bool
	copied map[string][]string
}

// fieldKey names the field that a selector is about; empty for what is no field of a named struct.
func fieldKey(info *types.Info, e ast.Expr) string {
	sel, ok := ast.Unparen(e).(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	s := info.Selections[sel]
	if s == nil || s.Kind() != types.FieldVal {
		return ""
	}
	t := s.Recv()
	var name string
	for _, i := range s.Index() {
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		named, ok := types.Unalias(t).(*types.Named)
		if !ok {
			return ""
		}
		f := named.Underlying().(*types.Struct).Field(i)
		name, t = ownerKey(named)+"."+f.Name(), f.Type()
	}
	return name
}

func ownerKey(named *types.Named) string {
	if named.Obj().Pkg() == nil {
		return named.Obj().Name()
	}
	return named.Obj().Pkg().Path() + "." + named.Obj().Name()
}

// look notes what a file does with fields.
func (m *module) look(info *types.Info, file *ast.File) {
	settled := map[ast.Expr]bool{} // selectors that read nothing by themselves
	hand := func(from ast.Expr, to string) {
		from = ast.Unparen(from)
		if key := fieldKey(info, from); key != "" && to != "" {
			settled[from] = true
			m.copied[key] = append(m.copied[key], to)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				key := fieldKey(info, to)
				if n.Tok == token.ASSIGN { // else it is read, too
					settled[ast.Unparen(to)] = true
				}
				if len(n.Lhs) == len(n.Rhs) {
					hand(n.Rhs[i], key)
				}
			}
		case *ast.CompositeLit:
			t := info.TypeOf(n)
			if p, ok := t.Underlying().(*types.Pointer); ok {
				t = p.Elem()
			}
			named, ok := types.Unalias(t).(*types.Named)
			if !ok {
				break
			}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					if id, ok := kv.Key.(*ast.Ident); ok {
						hand(kv.Value, ownerKey(named)+"."+id.Name)
					}
				}
			}
		case *ast.SelectorExpr:
			if key := fieldKey(info, n); key != "" && !settled[n] {
				m.read[key] = true
			}
		}
		return true
	})
}

// onlyShows are files that show settings, or make them: what they read has no effect on a job. How --dry-run is asked to
// show them is an effect of its own.
func onlyShows(path string) bool {
	return strings.Contains(path, "/cmd/dialect/") || strings.Contains(path, "/cmd/dryrun/") && filepath.Base(path) != "settings.go"
}

// loadModule type-checks all packages of the module, without their tests.
func loadModule(t *testing.T) *module {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles,Module",
		"muster/cmd/muster")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	type listed struct {
		ImportPath, Export, Dir string
		GoFiles                 []string
		Module                  *struct{ Main bool }
	}
	m := &module{
		fset: token.NewFileSet(), types: map[string]*types.Package{}, export: map[string]string{}, read: map[string]bool{},
		copied: map[string][]string{},
	}
	var ours []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		m.export[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			ours = append(ours, p)
		}
	}
	imports := importer.ForCompiler(m.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(m.export[path]) })
	for _, p := range ours {
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(m.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}}
		conf := types.Config{Importer: imports}
		checked, err := conf.Check(p.ImportPath, m.fset, files, info)
		if err != nil {
			t.Fatal(err)
		}
		m.types[p.ImportPath] = checked
		for _, file := range files {
			if !onlyShows(m.fset.Position(file.Pos()).Filename) {
				m.look(info, file)
			}
		}
	}
	return m
}

// isRead reports whether a field is read, or handed on to one that is.
func (m *module) isRead(key string, seen map[string]bool) bool {
	if seen[key] {
		return false
	}
	seen[key] = true
	return m.read[key] || slices.ContainsFunc(m.copied[key], func(to string) bool { return m.isRead(to, seen) })
}

// unread are the fields of a type, and of all of the module's structs that are in it, that nothing reads.
func (m *module) unread(t types.Type, seen map[string]bool) []string {
	var found []string
	switch t := types.Unalias(t).(type) {
	case *types.Pointer:
		return m.unread(t.Elem(), seen)
	case *types.Slice:
		return m.unread(t.Elem(), seen)
	case *types.Map:
		return append(m.unread(t.Key(), seen), m.unread(t.Elem(), seen)...)
	case *types.Named:
		s, ok := t.Underlying().(*types.Struct)
		if !ok || t.Obj().Pkg() == nil || m.types[t.Obj().Pkg().Path()] == nil || seen[ownerKey(t)] {
			return nil
		}
		seen[ownerKey(t)] = true
		for f := range s.Fields() {
			key := ownerKey(t) + "." + f.Name()
			if !m.isRead(key, map[string]bool{}) {
				found = append(found, key)
			}
			found = append(found, m.unread(f.Type(), seen)...)
		}
	}
	return found
}

// shownOnly are the fields of a job that are there to be shown, and why nobody misses anything else.
var shownOnly = map[string]string{
	"muster/launch/job.Job.Dialect": "the command line that --dry-run names",
	"muster/launch/job.Meeting.Conf": "the words of --rdzv-conf for --dry-run: what they ask for stands in other fields, and the " +
		"dialects refuse the rest",
	"muster/cmd/dialect.Request.Reached": "the nodes of an MPIJob that its launcher reaches, which muster explain names; the launcher's " +
		"command starts them",
	"muster/cmd/dialect.Setting.secret":  "whether the value of a setting is hidden where it is shown",
	"muster/cmd/dialect.PlacedNode.Host": "where muster explain says that a pod runs; the job's own list of hosts starts it",
}

// Every field of a job is read by somebody, or a setting could stand there and mean nothing: fields that only the
// dialects and --dry-run look at, and such as are only handed on, do not count. What a platform or a job file says is
// for the dialects alone.
func TestEveryFieldOfAJobIsRead(t *testing.T) {
	testutil.Long(t)
	m := loadModule(t)
	delete(m.types, "muster/internal/platform")
	delete(m.types, "muster/cmd/dialect/jobfile")
	found := map[string]bool{}
	for _, root := range []struct{ pkg, name string }{{"muster/launch/job", "Job"}, {"muster/cmd/dialect", "Request"}} {
		for _, key := range m.unread(m.types[root.pkg].Scope().Lookup(root.name).Type(), map[string]bool{}) {
			found[key] = true
		}
	}
	for key := range found {
		if shownOnly[key] == "" {
			t.Errorf("nobody reads %s", key)
		}
	}
	for key := range shownOnly {
		if !found[key] {
			t.Errorf("%s is read, or gone: take it out of the list", key)
		}
	}
}
