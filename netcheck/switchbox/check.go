package switchbox

import (
	"context"
	"errors"
	"fmt"

	"muster/internal/check"
	"muster/netcheck/devicecheck"
)

// Check runs the check program on the links of a node, and returns what that says of them as the checks of a node do.
func Check(ctx context.Context, cfg devicecheck.Config, rules Rules) (results []check.Result, err error) {
	program, err := devicecheck.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, program.Close()) }() //nolint:contextcheck // whatever became of ctx
	box, err := Test(ctx, program, rules)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return Failed(err), nil
	}
	return box.Results(), nil
}

const namePython = "name an interpreter that has torch: --python"

func result(id string, status check.Status, reason, try string) check.Result {
	return check.Result{ID: id, Status: status, Reason: reason, Try: try, Source: "L2"}
}

// Skipped are the results where no interpreter was found that could run the check program.
func Skipped(err error) []check.Result {
	return []check.Result{result("switchbox", check.Skip, err.Error(), namePython)}
}

// Failed are the results of a test that has an error: what could not be tested is skipped.
func Failed(err error) []check.Result {
	switch {
	case devicecheck.HasNoDevice(err):
		return []check.Result{result("switchbox", check.Skip, err.Error(), "")}
	case errors.Is(err, devicecheck.ErrNoTorch):
		return Skipped(err)
	}
	return []check.Result{result("switchbox", check.Fail, err.Error(), "")}
}

// Results are the links that are worth a look, and the box.
func (r *Result) Results() (results []check.Result) {
	for _, bad := range r.Bad() {
		results = append(results, result("switchbox-link", check.Warn, bad, "check the cable and the port of the device that is named"))
	}
	for _, odd := range r.Odd() {
		results = append(results,
			result("switchbox-link", check.Warn, odd, "compare the link's cable and port with those of the other pairs"))
	}
	if why := r.Fault(); why != "" {
		return append(results, result("switchbox", check.Fail, why, "exclude the node until its box was repaired"))
	}
	return append(results, result("switchbox", check.Pass,
		fmt.Sprintf("%d of %d channels are healthy, %d are needed", r.Healthy, len(r.Links), r.Rules.MinChannels), ""))
}
