package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
)

// store compares our store server with PyTorch's.
func store(ctx context.Context, b *bench) ([]row, error) {
	log.Print("store: our server beside PyTorch's")
	return b.storeRows(ctx)
}

// clients does so with thousands of clients that come at once.
func clients(ctx context.Context, b *bench) ([]row, error) {
	log.Print("clients: thousands of them at our server and at PyTorch's")
	return b.storeRows(ctx, "-scale", "-muster", b.binary)
}

// storeRows runs the store's own benchmark, which prints one row as a JSON object per line, and takes its rows over.
func (b *bench) storeRows(ctx context.Context, args ...string) ([]row, error) {
	out, err := b.output(ctx, b.storebench, append(args, "-python", b.python("python"))...)
	if err != nil {
		return nil, err
	}
	var rows []row
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var r row
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return rows, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot read the rows of %s: %w", b.storebench, err)
		}
		rows = append(rows, r)
	}
}
