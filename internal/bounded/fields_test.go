package bounded

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

type inner struct {
	Name  string
	Count int
}

type outer struct {
	Text    string
	Named   kind
	List    []inner
	Pointer *inner
	None    *inner
	Map     map[string]string
	Bytes   []byte
	Time    time.Duration
	When    time.Time
	Ratio   float64
	hidden  string
}

type kind string

// Each field is limited, at every depth, and values within the limits stay unchanged.
func TestFields(t *testing.T) {
	long := strings.Repeat("x", 20)
	now := time.Now()
	got := outer{
		Text:    long + "\x1b",
		Named:   kind(long),
		List:    []inner{{long, -5}, {"b\n", 1 << 40}, {"c", 3}, {"d", 4}},
		Pointer: &inner{long, 1},
		Map: map[string]string{
			"k":  long,
			long: "v",
		},
		Bytes:  []byte(long),
		Time:   -time.Hour,
		When:   now,
		Ratio:  1e300,
		hidden: long,
	}
	Fields(&got, Limits{Text: 10, List: 3, Number: 1000})
	cut := long[:10]
	want := outer{
		Text:    cut,
		Named:   kind(cut),
		List:    []inner{{cut, -1}, {"b?", 1000}, {"c", 3}},
		Pointer: &inner{cut, 1},
		Map:     map[string]string{"k": cut},
		Bytes:   []byte(long),
		Time:    -1,
		When:    now,
		Ratio:   1e300,
		hidden:  long,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	again := got
	Fields(&again, Limits{Text: 10, List: 3, Number: 1000})
	if !reflect.DeepEqual(got, again) {
		t.Errorf("got %+v the second time, want %+v", again, got)
	}
}
