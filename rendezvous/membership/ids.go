package membership

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"muster/rendezvous"
)

// idsKey lists the jobs whose agents have met at a store: agents that wait in vain are told of the others there. It is
// for people, and not authenticated.
const idsKey = KeyPrefix + "ids"

const (
	mostIDs  = 64 // run ids that are kept; of more, the first ones
	shownIDs = 8
)

// noteID adds our run id to the list.
func noteID(ctx context.Context, store rendezvous.Store, id string) error {
	value, err := peek(ctx, store, idsKey)
	for err == nil {
		ids := parseIDs(value)
		if slices.Contains(ids, id) || len(ids) >= mostIDs {
			return nil
		}
		text, err2 := json.Marshal(append(ids, id))
		if err2 != nil {
			return err2
		}
		var now []byte
		if now, err = store.CompareAndSet(ctx, idsKey, value, text); string(now) == string(text) {
			return err
		}
		value = now // another job was faster
	}
	return err
}

// parseIDs reads the list; what is no list is empty.
func parseIDs(value []byte) (ids []string) {
	if len(value) > maxRecord || json.Unmarshal(value, &ids) != nil {
		return nil
	}
	return ids
}

// otherIDs says which other jobs use a store, "" for none: those of muster, and those of torchrun where the store lists
// its keys.
func otherIDs(ctx context.Context, store rendezvous.Store, own string) string {
	value, err := peek(ctx, store, idsKey)
	if err != nil {
		return ""
	}
	ids := parseIDs(value)
	if lister, ok := store.(interface {
		ListKeys(ctx context.Context) ([]string, error)
	}); ok {
		keys, _ := lister.ListKeys(ctx) // servers before PyTorch 2.10 have no list
		for _, key := range keys {
			// A round's own keys are "<id>.<round>/...".
			if id, is := strings.CutPrefix(key, "/torch.rendezvous."); is && !strings.Contains(id, "/") {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	ids = slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return id == own })
	if len(ids) == 0 {
		return ""
	}
	more := ""
	if len(ids) > shownIDs {
		more = fmt.Sprintf(" and %d more", len(ids)-shownIDs)
		ids = ids[:shownIDs]
	}
	return shown(fmt.Sprintf("%q%s", ids, more))
}

// keyFull is under which a store of ours says that it had no room for what an agent wrote (tcpstore.KeyFull): all that
// an agent sees is that its connection was closed. It is for people, and not authenticated.
const keyFull = KeyPrefix + "full"

// whyFull returns what a store says of that, "" for nothing.
func whyFull(ctx context.Context, store rendezvous.Store) string {
	value, err := glance(ctx, store, keyFull)
	if err != nil || len(value) == 0 || len(value) > maxMessage {
		return ""
	}
	return shown(string(value))
}
