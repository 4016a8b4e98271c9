package nodes

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
)

// sideTest is a test in a goroutine of another one. go test runs no more parallel tests than there are processors,
// which is too few for jobs that spend their time waiting.
type sideTest struct {
	testing.TB
	name string

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

// atOnce runs tests, up to n of them at a time, and returns when all have ended. Each reports under its name.
func atOnce(t *testing.T, n int, names []string, run func(t testing.TB, i int)) {
	t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, n)
	for i, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			s := &sideTest{TB: t, name: name}
			defer s.clean()
			run(s, i)
		})
	}
	wg.Wait()
}

// clean runs the cleanups in a goroutine of its own, as one of them may end its goroutine too.
func (s *sideTest) clean() {
	for len(s.cleanups) > 0 {
		last := s.cleanups[len(s.cleanups)-1]
		s.cleanups = s.cleanups[:len(s.cleanups)-1]
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			last()
		}()
		<-ended
	}
}

func (s *sideTest) Name() string { return s.TB.Name() + "/" + s.name }

func (s *sideTest) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *sideTest) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *sideTest) Fail() {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.TB.Fail()
}

func (s *sideTest) FailNow() {
	s.Fail()
	runtime.Goexit()
}

func (s *sideTest) Log(args ...any) {
	s.Helper()
	s.TB.Log(s.name + ": " + fmt.Sprint(args...))
}

func (s *sideTest) Logf(format string, args ...any) {
	s.Helper()
	s.TB.Log(s.name + ": " + fmt.Sprintf(format, args...))
}

func (s *sideTest) Error(args ...any) {
	s.Helper()
	s.Log(args...)
	s.Fail()
}

func (s *sideTest) Errorf(format string, args ...any) {
	s.Helper()
	s.Logf(format, args...)
	s.Fail()
}

func (s *sideTest) Fatal(args ...any) {
	s.Helper()
	s.Log(args...)
	s.FailNow()
}

func (s *sideTest) Fatalf(format string, args ...any) {
	s.Helper()
	s.Logf(format, args...)
	s.FailNow()
}

// Skip and its like would leave a part of the test out unseen: what is missing must be asked for before.
func (s *sideTest) Skip(args ...any) { s.Fatal(args...) }

func (s *sideTest) Skipf(format string, args ...any) { s.Fatalf(format, args...) }

func (s *sideTest) SkipNow() { s.Fatal("skipped") }

func (s *sideTest) TempDir() string {
	s.Helper()
	dir, err := os.MkdirTemp(s.TB.TempDir(), "")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Error(err)
		}
	})
	return dir
}
