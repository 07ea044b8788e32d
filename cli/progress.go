package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progressLine is the line on a terminal that shows the current activity: the received bytes, or the elapsed time. It
// appears after a second, is redrawn, and is removed at the end.
type progressLine struct {
	out     io.Writer
	columns func() int

	mu          sync.Mutex
	what        string
	since       time.Time
	done, total int64         // bytes; total is 0 if unknown
	stop        chan struct{} // nil without an activity
	ended       chan struct{}
	drawn       bool
}

// Timing of the line.
const (
	progressAfter = time.Second
	progressEvery = 250 * time.Millisecond
)

// begin starts an activity, and replaces the previous one.
func (p *progressLine) begin(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what, p.done, p.total = visibleLine(what), 0, 0
	if p.since = time.Now(); p.stop != nil {
		return
	}
	p.stop, p.ended = make(chan struct{}), make(chan struct{})
	go p.redraw(p.stop, p.ended)
}

// have sets the number of received bytes.
func (p *progressLine) have(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = done, total
}

// redraw draws the line until stop is closed.
func (p *progressLine) redraw(stop <-chan struct{}, ended chan<- struct{}) {
	defer close(ended)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		if took := time.Since(p.since); took >= progressAfter || p.drawn {
			p.show(progressText(p.what, p.done, p.total, took, p.columns()-1))
		}
		p.mu.Unlock()
	}
}

// show replaces the line. The caller holds the lock.
func (p *progressLine) show(text string) {
	fmt.Fprint(p.out, "\r\x1b[K"+text)
	p.drawn = true
}

// set shows a text once.
func (p *progressLine) set(text string) {
	p.halt()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(cutTo(visibleLine(text), max(p.columns()-1, 1)))
}

// end removes the line.
func (p *progressLine) end() {
	p.halt()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}

// halt stops the redrawing; the line stays.
func (p *progressLine) halt() {
	p.mu.Lock()
	stop, ended := p.stop, p.ended
	p.stop = nil
	p.mu.Unlock()
	if stop != nil {
		close(stop)
		<-ended
	}
}

// barWidth is the width of a bar, in columns.
const barWidth = 20

// progressText returns the line: the activity, and a bar with rate and remaining time, or the elapsed time. If it is
// too long, the activity is cut first, then the end: a wrapped line can't be redrawn.
func progressText(what string, done, total int64, took time.Duration, columns int) string {
	far := ", " + wholeSeconds(took)
	if total > 0 {
		done = min(done, total)
		full := int(barWidth * done / total)
		far = fmt.Sprintf(" [%s%s] %s of %s", strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
			mebibytes(done), mebibytes(total))
		if rate := float64(done) / took.Seconds(); done > 0 && took >= progressAfter {
			left := time.Duration(float64(total-done) / rate * float64(time.Second))
			far += fmt.Sprintf(", %s/s, %s left", mebibytes(int64(rate)), wholeSeconds(left))
		}
	}
	what = "unitask: " + what
	if room := max(columns-len(far), len("unitask: ")); textWidth(what) > room {
		what = strings.TrimRight(cutTo(what, room), " ")
	}
	return strings.TrimRight(cutTo(what+far, max(columns, 1)), " ")
}

// wholeSeconds returns a duration in seconds or minutes.
func wholeSeconds(d time.Duration) string {
	if d = d.Round(time.Second); d >= time.Minute {
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}
