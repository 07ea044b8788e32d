package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Silence is how long a server may send nothing: until its answer begins, and between two pieces of it.
const Silence = 30 * time.Second

// Patient ends the requests of a transport whose server sends nothing for Silence. The time that a caller takes between
// two reads does not count.
func Patient(base http.RoundTripper) http.RoundTripper { return patient{base, Silence} }

type patient struct {
	http.RoundTripper
	silence time.Duration
}

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	silent := fmt.Errorf("%s sent nothing for %v", r.URL.Host, p.silence)
	timer := time.AfterFunc(p.silence, func() { cancel(silent) })
	resp, err := p.RoundTripper.RoundTrip(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if context.Cause(ctx) == silent {
			err = silent
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &watched{resp.Body, p.silence, timer, cancel, ctx}
	return resp, nil
}

// watched is an answer whose reads end after some time.
type watched struct {
	io.ReadCloser
	silence time.Duration
	timer   *time.Timer
	cancel  context.CancelCauseFunc
	ctx     context.Context
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.silence)
	n, err := w.ReadCloser.Read(p)
	w.timer.Stop()
	if err != nil && err != io.EOF && w.ctx.Err() != nil {
		err = context.Cause(w.ctx)
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	w.cancel(nil)
	return w.ReadCloser.Close()
}
