//go:build !race

package testutil

// RaceDetector says whether this test binary watches for races.
const RaceDetector = false
