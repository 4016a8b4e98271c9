// Package nodehealth asks a site's own health service what it thinks of this node, in the protocol of NVIDIA's
// resiliency extension (nvidia-resiliency-ext 0.7.0, nvhcd.proto, read): one call by gRPC at a Unix socket. It decides
// nothing: an answer that cannot be used is an error, and says nothing of the node.
package nodehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// method is the call, by service and name.
const method = "/nvhcd.HealthCheckService/RunHealthCheck"

// The numbers of the answer's fields. Append only.
const (
	fieldSuccess  protowire.Number = 1
	fieldExitCode protowire.Number = 2
	fieldOutput   protowire.Number = 3
	fieldError    protowire.Number = 4
)

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 1 << 20

// Answer is what the service says.
type Answer struct {
	Healthy bool
	// Reason says why where it is not.
	Reason string
}

// Ask asks the service at a Unix socket, until ctx ends. args go to the health check of the service.
func Ask(ctx context.Context, path string, args []string) (Answer, error) {
	conn, err := grpc.NewClient("passthrough:///unix", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialer(path)), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return Answer{}, fmt.Errorf("cannot ask the health service at %s: %w", path, err)
	}
	var said []byte
	err = conn.Invoke(ctx, method, request(args), &said)
	if err = errors.Join(err, conn.Close()); err != nil {
		return Answer{}, fmt.Errorf("cannot ask the health service at %s: %w", path, err)
	}
	a, err := decode(said)
	if err != nil {
		return Answer{}, fmt.Errorf("the answer of the health service at %s cannot be used: %w", path, err)
	}
	return a, nil
}

// request is what is asked: the arguments as field 1.
func request(args []string) []byte {
	var b []byte
	for _, a := range args {
		b = protowire.AppendTag(b, 1, protowire.BytesType)
		b = protowire.AppendString(b, a)
	}
	return b
}

// decode reads an answer. The node is at fault where the service says that its check failed, or where the check's JSON
// counts failures, as NVIDIA's launcher has it.
func decode(b []byte) (Answer, error) {
	var success bool
	var code int32
	var output, problem string
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return Answer{}, protowire.ParseError(n)
		}
		b = b[n:]
		switch {
		case kind == protowire.VarintType && (number == fieldSuccess || number == fieldExitCode):
			var v uint64
			if v, n = protowire.ConsumeVarint(b); number == fieldSuccess {
				success = v != 0
			} else {
				code = int32(v) // as the protocol cuts it
			}
		case kind == protowire.BytesType && (number == fieldOutput || number == fieldError):
			var v string
			if v, n = protowire.ConsumeString(b); number == fieldOutput {
				output = v
			} else {
				problem = v
			}
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return Answer{}, protowire.ParseError(n)
		}
		b = b[n:]
	}
	var said struct {
		FailCount    *float64 `json:"fail_count"`
		FailedChecks []any    `json:"failed_checks"`
	}
	err := json.Unmarshal([]byte(output), &said)
	switch {
	case !success:
		reason := []string{fmt.Sprintf("its health check failed with status %d", code)}
		for _, text := range []string{strings.TrimSpace(problem), strings.TrimSpace(output)} {
			if text != "" {
				reason = append(reason, text)
			}
		}
		return Answer{Reason: strings.Join(reason, ": ")}, nil
	case err != nil:
		return Answer{}, fmt.Errorf("its output is no JSON: %w", err)
	case said.FailCount == nil:
		return Answer{}, errors.New("its output has no fail_count")
	case *said.FailCount > 0:
		return Answer{Reason: fmt.Sprintf("%g of its health checks failed: %v", *said.FailCount, said.FailedChecks)}, nil
	}
	return Answer{Healthy: true}, nil
}

// raw hands bytes through as messages.
type raw struct{}

// Name is that of the encoding on the wire.
func (raw) Name() string { return "proto" }

// Marshal returns the bytes v.
func (raw) Marshal(v any) ([]byte, error) {
	b, is := v.([]byte)
	if !is {
		return nil, fmt.Errorf("internal error: a message of type %T", v)
	}
	return b, nil
}

// Unmarshal keeps the bytes in v.
func (raw) Unmarshal(data []byte, v any) error {
	b, is := v.(*[]byte)
	if !is {
		return fmt.Errorf("internal error: a message of type %T", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}
