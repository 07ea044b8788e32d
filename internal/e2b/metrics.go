package e2b

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metric is a measurement of a sandbox.
type metric struct {
	Timestamp string  `json:"timestamp"`
	Unix      int64   `json:"timestampUnix"`
	CPUs      int     `json:"cpuCount"`
	CPUUsed   float64 `json:"cpuUsedPct"`
	MemUsed   int64   `json:"memUsed"`
	MemTotal  int64   `json:"memTotal"`
	MemCache  int64   `json:"memCache"`
	DiskUsed  int64   `json:"diskUsed"`
	DiskTotal int64   `json:"diskTotal"`
}

// measureTime bounds a measurement.
const measureTime = 10 * time.Second

// measure returns a sandbox's measurements, as its kernel reports them. The files of a sandbox are in its memory.
func (box *sandbox) measure(ctx context.Context) (metric, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	at := time.Now()
	m := metric{Timestamp: stamp(at), Unix: at.Unix(), CPUs: box.cpus}
	text, err := box.readSmall(ctx, "/proc/meminfo")
	if err != nil {
		return m, err
	}
	of := kilobytes(text)
	m.MemTotal, m.MemCache = of["MemTotal"], of["Cached"]
	m.MemUsed = m.MemTotal - of["MemAvailable"]
	m.DiskUsed, m.DiskTotal = of["Shmem"], m.MemTotal/2
	if text, err = box.readSmall(ctx, "/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(text, " ")
		if load, err := strconv.ParseFloat(first, 64); err == nil && load >= 0 { // NaN is not
			m.CPUUsed = min(load/float64(box.cpus), 1) * 100
		}
	}
	return m, nil
}

// kilobytes reads lines of NAME: NUMBER kB, and returns bytes.
func kilobytes(text string) map[string]int64 {
	of := map[string]int64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 48)
		if err == nil {
			of[name] = n << 10
		}
	}
	return of
}

// slack is the distance of a measurement from the range that a request asks for.
const slack = 5 // seconds

// metrics returns a measurement of now, if the range includes it: there is no history.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request, box *sandbox) {
	list, q, now := []metric{}, r.URL.Query(), time.Now().Unix()
	start, errStart := strconv.ParseInt(cmp.Or(q.Get("start"), "0"), 10, 64)
	end, errEnd := strconv.ParseInt(cmp.Or(q.Get("end"), strconv.FormatInt(now, 10)), 10, 64)
	if errStart != nil || errEnd != nil {
		writeError(w, http.StatusBadRequest, "start and end: must be seconds since 1970")
		return
	}
	if box.ready() && start <= now+slack && end >= now-slack {
		m, err := box.measure(r.Context())
		if err != nil {
			s.fail(w, r, err)
			return
		}
		list = append(list, m)
	}
	writeJSON(w, http.StatusOK, list)
}

// maxMeasured bounds the sandboxes that one request measures.
const maxMeasured = 100

func (s *Server) allMetrics(w http.ResponseWriter, r *http.Request) {
	ids := strings.Split(r.URL.Query().Get("sandbox_ids"), ",")
	if len(ids) > maxMeasured {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("sandbox_ids: %d at most", maxMeasured))
		return
	}
	of := map[string]metric{}
	for _, box := range s.of(s.opts.Caller(r).Name) {
		if !slices.Contains(ids, box.id) || !box.ready() {
			continue
		}
		if m, err := box.measure(r.Context()); err == nil {
			of[box.id] = m
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"sandboxes": of})
}

// daemonMetrics answers as a sandbox's daemon.
func (s *Server) daemonMetrics(w http.ResponseWriter, r *http.Request) {
	box := sandboxOf(r.Context())
	m, err := box.measure(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"ts": m.Unix, "cpu_count": m.CPUs, "cpu_used_pct": m.CPUUsed,
		"mem_total": m.MemTotal, "mem_used": m.MemUsed, "mem_cache": m.MemCache, "mem_total_mib": m.MemTotal >> 20,
		"mem_used_mib": m.MemUsed >> 20, "disk_used": m.DiskUsed, "disk_total": m.DiskTotal})
}

// logEntry is a line of a sandbox's log for clients.
type logEntry struct {
	Timestamp string            `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// logs lists what happened to a sandbox.
func (s *Server) logs(w http.ResponseWriter, r *http.Request, box *sandbox) {
	q := r.URL.Query()
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), strconv.Itoa(maxLog)))
	if err != nil || limit < 0 {
		writeError(w, http.StatusBadRequest, "limit: must be a number from 0 on")
		return
	}
	after, _ := strconv.ParseInt(cmp.Or(q.Get("cursor"), q.Get("start"), "0"), 10, 64)
	list := []logEntry{}
	for _, e := range box.log.all() {
		if e.at.UnixMilli() >= after && strings.Contains(e.message, q.Get("search")) {
			list = append(list, logEntry{stamp(e.at), e.message, "info", map[string]string{}})
		}
	}
	if q.Get("direction") == "backward" {
		slices.Reverse(list)
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": list[:min(limit, len(list))]})
}
