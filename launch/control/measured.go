package control

import (
	"context"
	"net/http"

	"muster/launch/control/metrics"
	"muster/launch/report"
)

// Measurer is a Served that has gathered numbers beside its status.
type Measurer interface {
	// Measured are the numbers of this moment.
	Measured() report.Measured
}

// snapshotOf is what metrics tell of a job, of one node or of all.
func snapshotOf(ctx context.Context, of Served, scope Scope) (metrics.Snapshot, error) {
	status, err := of.Status(ctx, scope)
	s := metrics.Snapshot{Status: status}
	if m, is := of.(Measurer); is && err == nil {
		s.Measured = m.Measured()
	}
	return s, err
}

// Metrics answers with the metrics of a job: of the node that serves it, or with "?scope=world" with the ranks of all
// nodes, as far as they are known there.
func Metrics(of Served) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope, err := scopeOf(r, Node)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		metrics.Handler(func(ctx context.Context) (metrics.Snapshot, error) {
			return snapshotOf(ctx, of, scope)
		}).ServeHTTP(w, r)
	})
}
