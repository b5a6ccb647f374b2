package tollkeeper

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"
)

// text is written by many goroutines.
type text struct {
	mutex sync.Mutex
	bytes.Buffer
}

func (t *text) Write(line []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.Buffer.Write(line)
}

// ask tells the service of a row what to do, or to wait for, and waits until it has.
func ask(t *testing.T, address, what string) {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer connection.Close()
	fmt.Fprintln(connection, what)
	if answer, err := bufio.NewReader(connection).ReadString('\n'); answer != "ok\n" {
		t.Errorf("%s: %q, %v", what, answer, err)
	}
}

func TestFaults(t *testing.T) {
	var addresses map[string]string
	must(t, json.Unmarshal([]byte(needService(t, "TOLLKEEPER_FAULTS")), &addresses))
	for _, row := range scripts(t, "faults") {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			row.check(t, addresses[row.Name])
		})
	}
}

func (s scripted) check(t *testing.T, address string) {
	ask(t, address, "begin")
	var mutex sync.Mutex
	var heard [][2]string
	var log text
	client := s.Client.connect(t, address, Options{
		Timeout:       10 * time.Second,
		CommitTimeout: 10 * time.Second,
		Logger:        slog.New(slog.NewTextHandler(&log, nil)),
		OnCall: func(method string, _ time.Duration, err error) {
			outcome := "ok"
			if err != nil {
				outcome = code.Code(status.Code(err)).String()
			}
			mutex.Lock()
			heard = append(heard, [2]string{method, outcome})
			mutex.Unlock()
			if s.Client.OnCall == "throws" {
				panic("as the row says")
			}
		},
	})
	started := time.Now()
	(&run{t, client, rand.Text(), func(what string) { ask(t, address, what) }}).steps(s.Steps)
	took := time.Since(started).Milliseconds()
	if took < s.AtLeastMs || (s.AtMostMs > 0 && took > s.AtMostMs) {
		t.Errorf("it took %d ms", took)
	}
	if s.OnCall != nil && !slices.EqualFunc(heard, s.OnCall, func(heard, expected [2]string) bool {
		return heard[0] == expected[0] && slices.Contains(strings.Split(expected[1], "|"), heard[1])
	}) {
		t.Errorf("the hook has heard %v, not %v", heard, s.OnCall)
	}
	lines := strings.ReplaceAll(log.String(), `\"`, `"`)
	for _, part := range s.Log {
		if part = strings.ReplaceAll(part, "{address}", address); !strings.Contains(lines, part) {
			t.Errorf("the log lacks %q: %s", part, lines)
		}
	}
	if s.Logs != nil && strings.Count(lines, "\n") != *s.Logs {
		t.Errorf("the log has not %d lines: %s", *s.Logs, lines)
	}
}
