package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind checks and narrows the values of some fields. A ceiling's value is what read has returned, of one type for each
// kind.
type kind interface {
	form() Form
	usualText() string
	bounds() (least, most float64)
	// size is how many bytes 1 stands for, 0 if the field is not a size.
	size() int64
	// resolve checks the requested value, and puts it, or the default, into e.
	resolve(f *Field, r *Request, e *Effective) error
	// read reads a ceiling's value from TOML. Relative paths begin at dir.
	read(f *Field, value any, dir string) (any, error)
	// narrow cuts e to the ceiling; it never adds.
	narrow(f *Field, c *Ceiling, r *Request, e *Effective, deny deny)
	// beyond lists what a ceiling's value allows beyond another one's.
	beyond(mine, base any) []string
	// plain returns a ceiling's value in its JSON form.
	plain(value any) any
}

// deny records a denial.
type deny func(requested any, reason string)

// at returns a pointer to a struct's field by its JSON key.
func at[T any](of any, key string) *T {
	v := reflect.ValueOf(of).Elem()
	return v.Field(place(v.Type(), key)).Addr().Interface().(*T)
}

// place returns the index of a struct's field by its JSON key, -1 if it has none.
func place(t reflect.Type, key string) int {
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name == key {
			return i
		}
	}
	return -1
}

// none is the common part of kinds without a default or bounds.
type none struct{}

func (none) usualText() string { return "" }

func (none) bounds() (float64, float64) { return 0, 0 }

func (none) size() int64 { return 0 }

func (none) plain(value any) any { return value }

// unit is what a number counts.
type unit int

const (
	plainly unit = iota
	bytesOf
	mebibytes
	seconds
	fraction
)

// number is an amount with bounds. none, if not 0, is the value that asks for nothing at all; in a ceiling that is 0.
type number[N int | int64 | float64 | time.Duration] struct {
	least, usual, most, none N
	unit                     unit
}

func (k number[N]) form() Form {
	switch k.unit {
	case seconds:
		return Duration
	case fraction:
		return Fraction
	}
	return Number
}

func (k number[N]) usualText() string {
	switch {
	case k.unit == seconds:
		return k.show(k.usual) + "s"
	case k.unit == bytesOf && int64(k.usual)>>30 > 0:
		return fmt.Sprintf("%d GiB", int64(k.usual)>>30)
	case k.unit == bytesOf:
		return fmt.Sprintf("%d MiB", int64(k.usual)>>20)
	}
	if k.unit == mebibytes {
		return k.show(k.usual) + " MiB"
	}
	return k.show(k.usual)
}

func (k number[N]) bounds() (least, most float64) { return k.amount(k.least), k.amount(k.most) }

func (k number[N]) size() int64 {
	switch k.unit {
	case bytesOf:
		return 1
	case mebibytes:
		return 1 << 20
	}
	return 0
}

// amount returns a value as people write it: for a duration, the seconds.
func (k number[N]) amount(n N) float64 {
	if k.unit == seconds {
		return time.Duration(n).Seconds()
	}
	return float64(n)
}

func (k number[N]) show(n N) string { return strconv.FormatFloat(k.amount(n), 'f', -1, 64) }

// words returns a value with its unit.
func (k number[N]) words(n N) string {
	return k.show(n) + map[unit]string{bytesOf: " bytes", mebibytes: " MiB", seconds: " s"}[k.unit]
}

func (k number[N]) check(n N) error {
	if n >= k.least && n <= k.most || n == k.none && n != 0 {
		return nil
	}
	must := fmt.Sprintf("must be from %s to %s", k.show(k.least), k.show(k.most))
	if k.none != 0 {
		must += fmt.Sprintf(", or %d for none", int64(k.none))
	}
	return errors.New(must)
}

func (k number[N]) resolve(f *Field, r *Request, e *Effective) error { return k.pick(f, r, e) }

// pick checks a requested value and puts it, if it is not 0, into granted.
func (k number[N]) pick(f *Field, asked, granted any) error {
	n := cmp.Or(*at[N](asked, f.Key), *at[N](granted, f.Key), k.usual)
	if err := k.check(n); err != nil {
		return f.wrong(k.show(n), err.Error())
	}
	*at[N](granted, f.Key) = n
	return nil
}

func (k number[N]) read(f *Field, value any, _ string) (any, error) {
	var n N
	switch v := value.(type) {
	case int64:
		n = N(v)
		if k.unit == seconds {
			n = N(time.Duration(min(v, math.MaxInt64/int64(time.Second))) * time.Second)
		}
	case float64:
		if k.unit == fraction {
			n = N(v)
			break
		}
		if k.unit != seconds {
			return nil, errors.New("must be a whole number")
		}
		if math.IsNaN(v) || math.Abs(v) > float64(2*MaxTimeout/time.Second) {
			v = -1
		}
		n = N(v * float64(time.Second))
	default:
		return nil, fmt.Errorf("is a %s, and must be a number", tomlType(value))
	}
	switch {
	case k.none == 0:
		return n, k.check(n)
	case n == 0:
		return n, nil
	case n == k.none:
		return nil, errors.New("must not be negative: 0 allows none")
	}
	return n, k.check(n)
}

func (k number[N]) narrow(f *Field, c *Ceiling, r *Request, e *Effective, deny deny) {
	k.cut(f, c, r, e, deny)
}

// cut lowers a granted value to the ceiling's.
func (k number[N]) cut(f *Field, c *Ceiling, from, granted any, deny deny) {
	most, ok := c.most[f.ceiling()].(N)
	n, asked := at[N](granted, f.Key), *at[N](from, f.Key) != 0
	switch {
	case !ok || *n <= most:
	case most == 0:
		if asked {
			deny(k.show(*n), "none are allowed")
		}
		*n = k.none
	default:
		if asked { // lowering a default is not a denial: nobody asked for it
			deny(k.show(*n), "at most "+k.words(most)+" is allowed")
		}
		*n = most
	}
}

func (k number[N]) beyond(mine, base any) []string {
	if mine.(N) <= base.(N) {
		return nil
	}
	return []string{k.show(mine.(N))}
}

func (k number[N]) plain(value any) any { return k.amount(value.(N)) }

// choice is one of some words; "" leaves it open, as auto does if it is one of them.
type choice []string

const auto = "auto"

func (choice) form() Form { return Text }

func (choice) usualText() string { return "" }

func (choice) bounds() (float64, float64) { return 0, 0 }

func (choice) size() int64 { return 0 }

func (choice) plain(value any) any { return value }

func (k choice) check(word string) error {
	if slices.Contains(k, word) {
		return nil
	}
	last := len(k) - 1
	return errors.New("use " + strings.Join(k[:last], ", ") + " or " + k[last])
}

func (k choice) resolve(f *Field, r *Request, e *Effective) error {
	word := *at[string](r, f.Key)
	if word != "" {
		if err := k.check(word); err != nil {
			return f.wrong(fmt.Sprintf("%.100q", word), err.Error())
		}
	}
	if word == auto {
		word = ""
	}
	*at[string](e, f.Key) = word
	return nil
}

func (k choice) read(f *Field, value any, _ string) (any, error) {
	word, ok := value.(string)
	if !ok {
		return nil, fmt.Errorf("is a %s, and must be a string", tomlType(value))
	}
	return word, k.check(word)
}

func (k choice) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	only, ok := c.most[f.ceiling()].(string)
	word := at[string](e, f.Key)
	if !ok || *word == only || only == auto {
		return
	}
	if *word != "" {
		deny(*word, "only "+only+" is allowed")
	}
	*word = only
}

func (k choice) beyond(mine, base any) []string {
	if mine == base || base == auto {
		return nil
	}
	return []string{mine.(string)}
}

// nets are the hosts of HTTP and TLS. If a ceiling allows every public host, it admits the part of a rule on 80 and
// 443.
var nets = rules[NetRule]{parse: ParseNetRule, meet: NetRule.intersect, also: func(c *Ceiling) []NetRule {
	if every, _ := c.most["allowNetAny"].(bool); every {
		return []NetRule{{Any: true}}
	}
	return nil
}}

// openNets are nets that a run may reach without a question. A net in the ceiling's list ask moves to Effective.Ask
// instead of being cut. A ceiling with that key and no list of hosts allows none without a question.
type openNets struct{ rules[NetRule] }

func (k openNets) narrow(f *Field, c *Ceiling, r *Request, e *Effective, deny deny) {
	top, listed := c.most[f.ceiling()].([]NetRule)
	ask, asks := c.most["ask"].([]NetRule)
	covers := func(list []NetRule, rule NetRule) bool {
		return slices.ContainsFunc(list, func(most NetRule) bool {
			both, ok := rule.intersect(most)
			return ok && both == rule
		})
	}
	if asks {
		under := *c
		under.most = maps.Clone(c.most)
		under.most[f.ceiling()] = slices.Concat([]NetRule{}, top)
		c, listed = &under, true
	}
	if listed {
		top = slices.Concat(top, k.also(c))
		e.AllowNet = slices.DeleteFunc(e.AllowNet, func(rule NetRule) bool {
			asked := !covers(top, rule) && covers(ask, rule) && len(e.Ask) < MaxRules
			if asked && !slices.Contains(e.Ask, rule) {
				e.Ask = append(e.Ask, rule)
			}
			return asked
		})
	}
	k.rules.narrow(f, c, r, e, deny)
}

// asks are nets that unitask asks somebody about. A ceiling admits those of its key ask, and those that need no
// question; without the key, it admits the same as allowNet.
type asks struct{ rules[NetRule] }

func (k asks) narrow(f *Field, c *Ceiling, r *Request, e *Effective, deny deny) {
	own, said := c.most[f.ceiling()].([]NetRule)
	open, listed := c.most["allowNet"].([]NetRule)
	if !said && !listed {
		return
	}
	under := &Ceiling{Path: c.Path, most: map[string]any{f.ceiling(): slices.Concat(own, open, nets.also(c))}}
	k.rules.narrow(f, under, r, e, deny)
}

// anyNet allows every public host on 80 and 443. A ceiling with a list of hosts forbids that unless it says otherwise.
type anyNet struct{ none }

func (anyNet) form() Form { return Switch }

func (anyNet) resolve(f *Field, r *Request, e *Effective) error {
	*at[bool](e, f.Key) = *at[bool](r, f.Key)
	return nil
}

func (anyNet) read(f *Field, value any, _ string) (any, error) {
	on, ok := value.(bool)
	if !ok {
		return nil, fmt.Errorf("is a %s, and must be true or false", tomlType(value))
	}
	return on, nil
}

func (anyNet) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	list, listed := c.most["allowNet"].([]NetRule)
	if _, asks := c.most["ask"]; asks {
		listed = true
	}
	every, said := c.most[f.ceiling()].(bool)
	on := at[bool](e, f.Key)
	if !*on || every || !said && !listed {
		return
	}
	deny(true, "not every host is allowed")
	*on = false
	for _, rule := range list { // "everything" under a list means the list
		if rule, ok := (NetRule{Any: true}).intersect(rule); ok && !slices.Contains(e.AllowNet, rule) {
			e.AllowNet = append(e.AllowNet, rule)
		}
	}
}

func (anyNet) beyond(mine, base any) []string {
	if mine.(bool) && !base.(bool) {
		return []string{"true"}
	}
	return nil
}

// permission allows something unless a ceiling says false.
type permission struct{ none }

func (permission) form() Form { return Switch }

func (permission) resolve(f *Field, r *Request, e *Effective) error {
	*at[bool](e, f.Key) = *at[bool](r, f.Key)
	return nil
}

func (permission) read(f *Field, value any, dir string) (any, error) {
	return anyNet{}.read(f, value, dir)
}

func (permission) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	on := at[bool](e, f.Key)
	if allowed, said := c.most[f.ceiling()].(bool); *on && said && !allowed {
		deny(true, "is not allowed")
		*on = false
	}
}

func (permission) beyond(mine, base any) []string { return anyNet{}.beyond(mine, base) }

// demand requires something if the request or a ceiling says so. A ceiling says so with true, or with a word.
type demand struct {
	none
	word string
}

func (demand) form() Form { return Switch }

func (demand) resolve(f *Field, r *Request, e *Effective) error {
	*at[bool](e, f.Key) = *at[bool](r, f.Key)
	return nil
}

func (k demand) read(f *Field, value any, dir string) (any, error) {
	if k.word == "" {
		return anyNet{}.read(f, value, dir)
	}
	if text, ok := value.(string); !ok || text != k.word {
		return nil, fmt.Errorf("must be %q", k.word)
	}
	return true, nil
}

func (demand) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, _ deny) {
	on := at[bool](e, f.Key)
	must, _ := c.most[f.ceiling()].(bool)
	*on = *on || must
}

func (demand) beyond(mine, base any) []string {
	if base.(bool) && !mine.(bool) {
		return []string{"false"}
	}
	return nil
}

func (k demand) plain(value any) any {
	if k.word == "" {
		return value
	}
	return k.word
}

// tomlType returns the name of a TOML value's type.
func tomlType(value any) string {
	switch value.(type) {
	case string:
		return "string"
	case int64, float64:
		return "number"
	case bool:
		return "boolean"
	case []any, []map[string]any:
		return "list"
	case map[string]any:
		return "table"
	}
	return "date"
}
