package fleet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// A tenant's data takes no more than its share of the memory, and all tenants together no more than the total. Whoever
// waits gets memory when some is returned.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(1)
		if b.try("a", maxHeldTenant+1) || !b.try("a", maxHeldTenant) || b.try("a", 1) || !b.try("b", maxHeld-maxHeldTenant) ||
			b.try("b", 1) || b.try("c", 1) {
			t.Fatalf("%+v", b)
		}
		got := make(chan error, 1)
		go func() { got <- b.take(t.Context(), "c", 5) }()
		synctest.Wait()
		b.give("b", 4)
		synctest.Wait()
		if len(got) != 0 {
			t.Error("it has more than there is")
		}
		b.give("b", 1)
		if err := <-got; err != nil {
			t.Error(err)
		}
		timed, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.take(timed, "c", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		b.give("a", maxHeldTenant)
		b.give("b", maxHeld-maxHeldTenant-5)
		b.give("c", 5)
		if b.free != maxHeld || len(b.taken) != 0 {
			t.Errorf("%+v", b)
		}
	})
}

// Two tenants that hold their maximum, for as long as they like, leave each other tenant its first part.
func TestAttackBudgetHeld(t *testing.T) {
	for _, tenants := range []int{3, 60, 1000} {
		b := newBudget(tenants)
		largest := b.try("a", maxHeldTenant)
		for b.try("b", 4<<10) {
		}
		free := 0
		for i := range tenants - 2 {
			if b.try(strconv.Itoa(i), b.first) && b.free >= 0 {
				free++
			}
		}
		attack.Check(t, fmt.Sprintf("the first part of %d tenants' memory, beside two that hold all", tenants-2),
			fmt.Sprint(true, tenants-2), fmt.Sprint(largest, free))
	}
}

// Large code and inline files travel apart from the task, and are together again at the worker. False sizes are
// detected, and cause no work.
func TestCodeApart(t *testing.T) {
	t.Parallel()
	s, _ := served(t)
	req := unitask.Request{Code: strings.Repeat("x", 1<<20),
		InlineFiles: []unitask.InlineFile{{Name: "a", Content: "aa"}, {Name: "b"}, {Name: "c", Content: "ccc"}}}
	sent := task{Request: req}
	content := sent.takeOut()
	b, err := s.put(t.Context(), content, false)
	if err != nil || sent.Request.Code != "" || req.InlineFiles[0].Content != "aa" {
		t.Fatal(err, req.InlineFiles)
	}
	at, err := sent.put(t.Context(), s)
	if err != nil || at.Size > 1<<10 {
		t.Fatal(err, at.Size)
	}
	got, err := readTask(t.Context(), s, at)
	if err == nil {
		err = got.putIn(t.Context(), s, &b)
	}
	if err != nil || got.Request.Code != req.Code || got.Request.InlineFiles[0].Content != "aa" ||
		got.Request.InlineFiles[1].Content != "" || got.Request.InlineFiles[2].Content != "ccc" {
		t.Fatal(err, got.Request.InlineFiles)
	}
	for name, sizes := range map[string][]int64{"none": nil, "too many": {1 << 20, 2, 0, 3, 0},
		"negative": {1 << 20, -2, 0, 3}, "more than there is": {1 << 20, 2, 0, 4},
		"past an int": {1<<63 - 1, 1<<63 - 1, 0, 0}} {
		lies := got
		lies.Code = sizes
		if err := lies.putIn(t.Context(), s, &b); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if err := got.putIn(over, s, &b); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if small := (task{Request: unitask.Request{Code: "x"}}); small.takeOut() != nil || small.Request.Code != "x" {
		t.Error("a small code is sent apart")
	}
}
