// Package roles is what the programs around Go's clients share: settings by flags, and a line of JSON for each event.
package roles

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Settings are the same flags for every client.
type Settings struct {
	Bootstrap                                               []string
	Topic, Target, Group, ID, Balancer                      string
	Count, Size, Records, Partitions, Producers, BatchBytes int
	Pause                                                   time.Duration
}

// Event is what happened; its name is under "event".
type Event map[string]any

// Role runs until its work is done or, where there is no end to it, until the context is.
type Role func(context.Context, *Settings) error

var printing sync.Mutex

// Report prints an event as one line.
func Report(event Event) {
	printing.Lock()
	defer printing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(event); err != nil {
		log.Fatal(err)
	}
}

// ReportRecord prints where a record was and what it holds.
func ReportRecord(partition int32, offset int64, value []byte) {
	Report(Event{
		"event": "record", "partition": partition, "offset": offset, "length": len(value),
		"crc": crc32.ChecksumIEEE(value),
	})
}

// Value can be told by its number and size alone.
func Value(number, size int) []byte {
	head := fmt.Sprintf("%08d.", number)
	return []byte(head + strings.Repeat(string(rune('a'+number%26)), max(0, size-len(head))))
}

// Committed says how transaction `number` is to end: every fifth is aborted.
func Committed(number int) bool {
	return number%5 != 4
}

// Parallel runs a role several times beside each other, each with a transactional id of its own.
func Parallel(role Role) Role {
	return func(ctx context.Context, s *Settings) error {
		outcomes := make(chan error, s.Producers)
		for index := range s.Producers {
			own := *s
			own.ID = fmt.Sprintf("%s-%d", s.ID, index)
			go func() { outcomes <- role(ctx, &own) }()
		}
		failures := []error{}
		for range s.Producers {
			failures = append(failures, <-outcomes)
		}
		return errors.Join(failures...)
	}
}

// Main runs the role named by the first argument; SIGTERM ends its context.
func Main(roles map[string]Role) {
	s := &Settings{}
	bootstrap := flag.String("bootstrap", "", "addresses")
	flag.StringVar(&s.Topic, "topic", "", "the topic to write or read")
	flag.StringVar(&s.Target, "to", "", "etl: the topic to write")
	flag.StringVar(&s.Group, "group", "", "the consumer group")
	flag.StringVar(&s.ID, "id", "", "the transactional id")
	flag.StringVar(&s.Balancer, "balancer", "cooperative-sticky", "how partitions are shared out")
	flag.IntVar(&s.Count, "count", 1<<30, "records or transactions")
	flag.IntVar(&s.Size, "size", 20, "bytes of a value")
	flag.IntVar(&s.Records, "records", 12, "records of a transaction")
	flag.IntVar(&s.Partitions, "partitions", 6, "partitions of the topic written")
	flag.IntVar(&s.Producers, "producers", 3, "transactional producers beside each other")
	flag.IntVar(&s.BatchBytes, "batch-bytes", 1_000_000, "largest batch")
	flag.DurationVar(&s.Pause, "pause", 0, "between two records")
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		log.Fatalf("the first argument names a role")
	}
	if err := flag.CommandLine.Parse(os.Args[2:]); err != nil {
		log.Fatal(err)
	}
	s.Bootstrap = strings.Split(*bootstrap, ",")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := roles[os.Args[1]](ctx, s); err != nil {
		log.Fatal(err)
	}
	Report(Event{"event": "done"})
}
