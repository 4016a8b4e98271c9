package gather

import (
	"context"
	"encoding/binary"

	"muster/internal/python"
	"muster/launch/evidence/flight"
)

// askRecorder asks the process for its last collectives.
func (l *look) askRecorder() {
	if l.recorder == nil || l.to.NoStacks == "it is stopped" || l.recorder.Truncate(0) != nil {
		return
	}
	pipe := l.openPipe(l.pipe)
	if pipe == nil {
		return
	}
	l.told = put(pipe, python.AskFlight) == nil
	_ = pipe.Close()
}

// flight takes what the process has written of them. One that computes, and may not give up its interpreter's lock, has
// less time for it.
func (l *look) flight(ctx context.Context) {
	if !l.told {
		return
	}
	patience := Limit / 5
	if l.to.Wants >= 0.5 {
		patience = interval
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var head [8]byte
		info, err := l.recorder.Stat()
		if err != nil {
			return
		}
		if n, _ := l.recorder.ReadAt(head[:], 0); n == len(head) {
			size := binary.LittleEndian.Uint64(head[:])
			if size > flight.Most {
				return
			}
			if uint64(info.Size()) >= 8+size {
				text := make([]byte, size)
				if n, _ := l.recorder.ReadAt(text, 8); uint64(n) == size { // what is cut off is no answer
					l.to.Calls, _ = flight.Read(text)
				}
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		sleep(ctx, quiet/2)
	}
}
