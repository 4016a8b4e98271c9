package web

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"muster/launch/control"
)

// heartbeat is how often a stream says something where nothing happens: who is gone is noticed then.
const heartbeat = 15 * time.Second

// sse writes Server-Sent Events. Nobody waits for a client: a part that is not taken within writeTime ends the stream.
type sse struct {
	w    http.ResponseWriter
	ctl  *http.ResponseController
	gone bool
	buf  []byte
}

func newSSE(w http.ResponseWriter) *sse {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	return &sse{w: w, ctl: http.NewResponseController(w)}
}

// put writes one event; id is left out where it is empty. Data has no line feeds in it.
func (s *sse) put(kind, id string, data []byte) {
	b := s.buf[:0]
	if kind != "" {
		b = append(append(append(b, "event: "...), kind...), '\n')
	}
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	b = append(append(append(b, "data: "...), data...), "\n\n"...)
	s.write(b)
	if s.buf = b; cap(b) > 64<<10 {
		s.buf = nil
	}
}

func (s *sse) write(b []byte) {
	if s.gone {
		return
	}
	_ = s.ctl.SetWriteDeadline(time.Now().Add(writeTime))
	if _, err := s.w.Write(b); err != nil {
		s.gone = true
	}
}

// flush sends what was written.
func (s *sse) flush() {
	if !s.gone && s.ctl.Flush() != nil {
		s.gone = true
	}
}

// stream tells of events, and with frames of how the job stands, until the client or the job ends. An event's id is
// its number: a client that comes back says the last one.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, frames, proven bool) {
	after, err := strconv.ParseUint(firstOf(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after"), "0"), 10, 64)
	if err != nil {
		fail(w, http.StatusBadRequest, "after is the number of an event", "")
		return
	}
	out := newSSE(w)
	ctx := r.Context()
	var news <-chan struct{}
	var seen uint64
	if frames {
		defer s.picture.enter()()
		out.put("hello", "", encoded(map[string]any{"steer": proven, "token": s.access.digest != nil}))
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for !out.gone {
		if frames {
			var kind string
			var data []byte
			if kind, data, seen, news = s.picture.frame(seen); data != nil {
				out.put(kind, "", data)
			}
			after = putEvents(out, s.cfg.Served.Events().Behind(after), after)
			out.flush()
			select {
			case <-ctx.Done():
				return
			case <-news:
			case <-beat.C:
				out.write([]byte(": here\n\n"))
			}
			continue
		}
		out.flush()
		wait, cancel := context.WithTimeout(ctx, heartbeat)
		found := s.cfg.Served.Events().After(wait, after)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if after = putEvents(out, found, after); len(found) == 0 {
			out.write([]byte(": here\n\n"))
		}
	}
}

// putEvents writes events, and returns the number of the last.
func putEvents(out *sse, events []control.Event, after uint64) uint64 {
	for i := range events {
		text, err := json.Marshal(&events[i])
		if err != nil { // texts and numbers
			continue
		}
		after = events[i].Seq
		out.put("event", strconv.FormatUint(after, 10), text)
	}
	return after
}

func firstOf(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}
