package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/nacl/box"
)

// answer answers the worker's questions until stop is called.
func (s *submission) answer(ctx context.Context) (stop func(), err error) {
	questions, err := hear(s.c.nc, subjectAsk+s.c.config.Tenant+"."+s.id, askedMessages, askedBytes)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	var reading stdin
	var answering sync.WaitGroup
	answering.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-questions.ready:
				for msg := questions.take(); msg != nil; msg = questions.take() {
					s.reply(ctx, msg, &reading)
				}
			}
		}
	})
	return func() {
		questions.close()
		close(done)
		answering.Wait()
	}, nil
}

// reply answers a question.
func (s *submission) reply(ctx context.Context, msg *nats.Msg, reading *stdin) {
	var q question
	if !published(msg) || len(msg.Data) > maxTicket || json.Unmarshal(msg.Data, &q) != nil {
		return
	}
	switch q.What {
	case "secrets":
		s.sendSecrets(ctx, msg, q)
	case "stdin":
		reading.answer(s.run.Stdin, msg, q.Chunk)
	}
}

// published reports whether a message was published to the subscribed subject. A JetStream consumer delivers to any
// subject that its creator names, even without permission to publish there; such a message has its stream's subject.
func published(m *nats.Msg) bool {
	own, _, _ := strings.Cut(m.Sub.Subject, "*")
	return strings.HasPrefix(m.Subject, own)
}

// asked reports whether a message is a request with this header, from a user who may publish to the subject. JetStream
// publishes its answers to any reply subject of a request, but without the header and without a reply subject.
func asked(m *nats.Msg, header string) bool {
	return m.Reply != "" && m.Header.Get(header) != ""
}

// refuse replies with the reason why a question gets no answer.
func refuse(msg *nats.Msg, why string) {
	no := nats.NewMsg(msg.Reply)
	no.Header.Set(headRefused, why)
	_ = msg.RespondMsg(no)
}

// sendSecrets sends the secrets, sealed to the worker that has claimed the run and to no other.
func (s *submission) sendSecrets(ctx context.Context, msg *nats.Msg, q question) {
	e, _, err := s.store.get(ctx, s.id)
	if err != nil || e.State != Claimed || e.Worker != q.Worker || e.Attempt != q.Attempt {
		refuse(msg, "the run is not this worker's")
		return
	}
	kv, err := s.c.workersStore(ctx)
	if err != nil {
		return
	}
	v, err := kv.Get(ctx, q.Worker)
	var info WorkerInfo
	if err != nil || len(v.Value()) > ofWorkers.each || decode(v.Value(), maxInfoValues, &info) != nil {
		refuse(msg, "the worker is not registered")
		return
	}
	key, err := s.c.config.sealTo(info)
	if err != nil {
		refuse(msg, err.Error())
		return
	}
	text, err := json.Marshal(sealed{s.work, s.id, e.Attempt, s.run.Request.Secrets})
	if err == nil {
		text, err = box.SealAnonymous(nil, text, key, nil)
	}
	if err != nil {
		refuse(msg, err.Error())
		return
	}
	_ = msg.Respond(text)
}

// stdin serves chunks of a standard input. It keeps the first chunks sent, up to a limit, for another attempt of the
// run.
type stdin struct {
	mu      sync.Mutex
	chunks  [][]byte
	kept    int
	end     bool
	err     error // why no more can be read
	reading bool
	waiting *nats.Msg // the last question for the chunk that is being read
}

// maxKeptStdin bounds the kept chunks, in bytes.
const maxKeptStdin = 1 << 20

func (in *stdin) answer(from io.Reader, msg *nats.Msg, chunk int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case from == nil:
		refuse(msg, "the run has none here")
	case chunk < 0 || chunk > len(in.chunks):
		refuse(msg, "there is no such chunk")
	case chunk < len(in.chunks) && in.chunks[chunk] == nil:
		refuse(msg, "too much was read before the worker was lost")
	case chunk < len(in.chunks):
		in.send(msg, chunk)
	case in.err != nil:
		refuse(msg, in.err.Error())
	default:
		in.waiting = msg
		if !in.reading && !in.end {
			in.reading = true
			go in.read(from)
		}
	}
}

func (in *stdin) send(msg *nats.Msg, chunk int) {
	m := nats.NewMsg(msg.Reply)
	m.Data = bytes.Clone(in.chunks[chunk])
	if in.end && chunk == len(in.chunks)-1 {
		m.Header.Set(headEnd, "1")
	}
	_ = msg.RespondMsg(m)
}

// read reads one chunk. Nobody waits for it to return: a terminal may stay silent forever, and the submitting process
// exits with its run.
func (in *stdin) read(from io.Reader) {
	buf := make([]byte, maxChunk)
	n, err := from.Read(buf)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reading, in.end = false, err == io.EOF
	if err != nil && !in.end {
		in.err = err
	}
	if in.err != nil && n == 0 {
		if in.waiting != nil {
			refuse(in.waiting, err.Error())
			in.waiting = nil
		}
		return
	}
	in.chunks = append(in.chunks, buf[:n:n])
	if in.kept += n; in.kept > maxKeptStdin {
		for i := range len(in.chunks) - 1 {
			in.chunks[i] = nil
		}
	}
	if in.waiting != nil {
		in.send(in.waiting, len(in.chunks)-1)
		in.waiting = nil
	}
}
