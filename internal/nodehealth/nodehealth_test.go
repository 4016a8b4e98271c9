package nodehealth

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// serve answers as the service at a socket of its own would, and notes what it was asked.
func serve(t *testing.T, answer []byte, asked *[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "health.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodec(raw{}))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "nvhcd.HealthCheckService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "RunHealthCheck",
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				return answer, decode(asked)
			},
		}},
	}, nil)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return path
}

// answer is a message of the service.
func answer(success bool, code int32, output, problem string) []byte {
	var b []byte
	b = protowire.AppendTag(b, fieldSuccess, protowire.VarintType)
	b = protowire.AppendVarint(b, protowire.EncodeBool(success))
	b = protowire.AppendTag(b, fieldExitCode, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(uint32(code)))
	b = protowire.AppendTag(b, fieldOutput, protowire.BytesType)
	b = protowire.AppendString(b, output)
	b = protowire.AppendTag(b, fieldError, protowire.BytesType)
	return protowire.AppendString(b, problem)
}

// An answer says that the node is well, that it is at fault and why, or nothing.
func TestAsk(t *testing.T) {
	for name, c := range map[string]struct {
		answer []byte
		well   bool
		says   string // of the reason, or of the error
		unused bool
	}{
		"well":  {answer(true, 0, `{"fail_count": 0}`, ""), true, "", false},
		"fails": {answer(false, 3, "", "GPU 2 is gone"), false, "status 3: GPU 2 is gone", false},
		"counts": {
			answer(true, 0, `{"fail_count": 2, "failed_checks": ["ib0", "dcgm"]}`, ""), false,
			"2 of its health checks failed: [ib0 dcgm]", false,
		},
		"no JSON":    {answer(true, 0, "ok", ""), false, "no JSON", true},
		"no count":   {answer(true, 0, "{}", ""), false, "no fail_count", true},
		"no message": {[]byte{0xff, 0xff}, false, "cannot be used", true},
		"other words": {
			append(answer(true, 0, `{"fail_count": 0}`, ""), protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType),
				7)...),
			true, "", false,
		},
	} {
		var asked []byte
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		a, err := Ask(ctx, serve(t, c.answer, &asked), []string{"--no-slurm"})
		cancel()
		says := a.Reason
		if err != nil {
			says = err.Error()
		}
		if a.Healthy != c.well || (err != nil) != c.unused || !strings.Contains(says, c.says) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if string(asked) != "\n\n--no-slurm" {
			t.Errorf("%s: it was asked %q", name, asked)
		}
	}
	_, err := Ask(t.Context(), filepath.Join(t.TempDir(), "none"), nil)
	if err == nil || !strings.Contains(err.Error(), "cannot ask the health service") {
		t.Errorf("nobody listens: %v", err)
	}
}

// FuzzDecode: whatever a service says is an answer or an error.
func FuzzDecode(f *testing.F) {
	f.Add(answer(true, 0, `{"fail_count": 0}`, ""))
	f.Add(answer(false, -1, "x", "y"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = decode(b) })
}
