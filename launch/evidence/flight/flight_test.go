package flight

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"muster/internal/pickle"
	"muster/launch/evidence"
)

// gloo is what rank 1 of two has written (PyTorch 2.15.0, gloo) that waits in a broadcast while rank 0 waits in an
// all_reduce.
func gloo(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/gloo-2.15.0.hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A real dump tells the calls in their order, and which of them has not ended.
func TestRead(t *testing.T) {
	got, err := Read(gloo(t))
	if err != nil {
		t.Fatal(err)
	}
	four := [][]int64{{4}}
	want := []evidence.Collective{
		{Group: "0", GroupIs: "default_pg", Number: 1, Op: "all_reduce", Inputs: four, Outputs: four, Type: "Float"},
		{Group: "0", GroupIs: "default_pg", Number: 2, Op: "barrier"},
		{
			Group: "0", GroupIs: "default_pg", Number: 3, Op: "broadcast", Inputs: [][]int64{{2, 3}}, Outputs: [][]int64{{2, 3}},
			Type: "Float", Pending: true,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if text := got[2].String(); text != "broadcast of 6 floats (call 3 of the default group)" {
		t.Errorf("%q", text)
	}
}

// Of many calls the newest are kept, of each group so many.
func TestReadKeepsTheNewest(t *testing.T) {
	var b []byte
	w := func(text ...string) {
		for _, s := range text {
			b = append(b, pickle.OpBinUnicode)
			b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
			b = append(b, s...)
		}
	}
	b = append(b, pickle.OpProto, 2, pickle.OpEmptyDict)
	w("entries")
	b = append(b, pickle.OpEmptyList, pickle.OpMark)
	const calls = 2000
	for i := range calls {
		b = append(b, pickle.OpEmptyDict)
		w("collective_seq_id")
		b = binary.LittleEndian.AppendUint32(append(b, pickle.OpBinInt), uint32(i))
		b = append(b, pickle.OpSetItem)
	}
	b = append(b, pickle.OpAppends, pickle.OpSetItem, pickle.OpStop)
	got, err := Read(append(binary.LittleEndian.AppendUint64(nil, uint64(len(b))), b...))
	if err != nil || len(got) != mostCalls || got[mostCalls-1].Number != calls-1 || got[0].Number != calls-mostCalls {
		t.Errorf("%v %+v", err, got)
	}
}

// What is cut off or made up is an error, and not a crash.
func FuzzRead(f *testing.F) {
	b := gloo(f)
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, text []byte) {
		calls, err := Read(text)
		for i := range calls {
			if err == nil {
				_ = calls[i].String()
			}
		}
	})
}
