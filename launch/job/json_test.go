package job_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/launch/job"
)

// fill sets everything below v to a value that is not its zero, and another one each time. It fails on what it cannot
// set, so that a field which would be lost between machines cannot be added unseen.
func fill(t *testing.T, v reflect.Value, path string, n *int) {
	t.Helper()
	*n++
	switch special := v.Addr().Interface().(type) {
	case *job.ExitCodes:
		codes, err := job.ParseExitCodes(fmt.Sprintf("%d,%d-255", *n%100, 100+*n%100))
		if err != nil {
			t.Fatal(err)
		}
		*special = codes
		return
	case *netip.Prefix:
		*special = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(*n), 0, 0}), 16)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n%3 + 1))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 1.0/3)
	case reflect.String:
		v.SetString(fmt.Sprintf("%d \"quoted\" <é>\n\t$x\\", *n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), path, n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), fmt.Sprintf("%s[%d]", path, i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), fmt.Sprintf("%s[%d]", path, i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(t, key, path+" key", n)
			fill(t, value, path+" value", n)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				t.Errorf("%s.%s is not exported: JSON would lose it, and this test cannot set it", path, f.Name)
				continue
			}
			fill(t, v.Field(i), path+"."+f.Name, n)
		}
	default:
		t.Errorf("%s is a %s, which this test does not know how to fill", path, v.Type())
	}
}

// A job is sent to the agents of other machines as JSON: nothing of it may be lost or changed on the way.
func TestJobAsJSON(t *testing.T) {
	codes := cmp.Comparer(func(a, b job.ExitCodes) bool { return a.String() == b.String() })
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	var full job.Job
	n := 0
	fill(t, reflect.ValueOf(&full).Elem(), "Job", &n)
	if n < 200 {
		t.Fatalf("only %d values were set", n)
	}
	for name, j := range map[string]job.Job{"full": full, "zero": {}} {
		text, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		var got job.Job
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(j, got, codes, prefixes); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var job job.Job
	if err := json.Unmarshal([]byte(`{"Restart": {"Retryable": "1-0"}}`), &job); err == nil {
		t.Error("exit codes that are none were read")
	}
}
