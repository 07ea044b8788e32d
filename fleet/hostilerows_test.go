package fleet_test

import (
	"archive/tar"
	"strings"
)

type hostileTenantRow struct {
	ticket string
	entry  any
	ends   string // its final state; "" means that nothing happens
	says   string
}

// hostileTenantRows are the cases of TestHostileTenant.
func hostileTenantRows(
	request func(more map[string]any) map[string]any, entry func(task any) map[string]any,
	inline func(text string) map[string]any, huge, wrong map[string]any,
	archive func(h *tar.Header, text string) map[string]any, outside string,
) map[string]hostileTenantRow {
	asks := func(more map[string]any) any { return entry(request(more)) }
	regular := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg} }
	malformed := func(entry any) hostileTenantRow {
		return hostileTenantRow{entry: entry, ends: "ended", says: "malformed"}
	}
	return map[string]hostileTenantRow{
		"no-json":          {ticket: "{{{{"},
		"deep-json":        {ticket: strings.Repeat("[", 1000)},
		"id-is-a-path":     {ticket: `{"run":"../../etc/passwd"}`},
		"id-is-a-wildcard": {ticket: `{"run":"*"}`},
		"no-such-run":      {},
		"entry-garbage":    {entry: "text"},
		"attempt-negative": {entry: map[string]any{"state": "queued", "class": "amd64", "attempt": -5}},
		"losses-many":      {entry: map[string]any{"state": "queued", "class": "amd64", "attempt": 1, "losses": 2}},
		"attempt-many":     {entry: map[string]any{"state": "queued", "class": "amd64", "attempt": 1 << 40}},
		"state-unknown": {
			entry: map[string]any{"state": "finished?", "class": "amd64", "memoryMb": 1, "task": request(nil)},
		},
		"memory-negative": {entry: map[string]any{"state": "queued", "class": "amd64", "memoryMb": -1 << 40}},
		"task-garbage":    malformed(entry(inline("]"))),
		"task-misspelled": malformed(entry(inline(`{"Request":{}}`))),
		"task-huge":       malformed(entry(huge)),
		"task-name-lies":  malformed(entry(wrong)),
		"task-missing": {
			entry: entry(map[string]any{"sha256": strings.Repeat("b", 64), "size": 10}),
			ends:  "ended",
			says:  "not found",
		},
		"caller-long":  malformed(asks(map[string]any{"caller": strings.Repeat("x", 10_000)})),
		"archive-up":   malformed(asks(map[string]any{"files": archive(regular("../../outside"), "x")})),
		"archive-root": malformed(asks(map[string]any{"files": archive(regular(outside), "x")})),
		"archive-device": {
			entry: asks(map[string]any{"files": archive(&tar.Header{Name: "dev", Typeflag: tar.TypeChar}, "")}),
			ends:  "ended",
			says:  "neither file",
		},
		"archive-sparse": {
			entry: asks(map[string]any{"files": inline(sparse(1 << 40))}),
			ends:  "ended",
			says:  "its files have more than",
		},
		"memory-lies": {
			entry: asks(map[string]any{"request": map[string]any{"code": "out run", "memoryMb": 2 << 20}}),
			ends:  "ended",
			says:  "no worker has",
		},
		"arch-other": malformed(asks(map[string]any{"request": map[string]any{"code": "out run", "arch": "riscv64"}})),
		"asks-somebody": {
			entry: asks(map[string]any{"request": map[string]any{"code": "out run", "ask": []string{"example.com"}}}),
			ends:  "ended",
			says:  "nobody is there to be asked",
		},
		"claimed-by-none": {
			entry: map[string]any{"state": "claimed", "worker": "../x", "attempt": 3, "losses": 2, "class": "amd64",
				"task": request(nil)},
			ends: "lost",
			says: "",
		},
		"archive-garbage": {
			entry: asks(map[string]any{"files": inline(strings.Repeat("x", 2000))}),
			ends:  "ended",
			says:  "brings",
		},
	}
}
