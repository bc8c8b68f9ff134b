// kafka-go by its public API, in roles that a test starts. It has no idempotent producer, no transactions and no
// cooperative rebalances.
package main

import (
	"context"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	. "klamm/ecosystem/roles"
)

const maxRecordsUnderWay = 100

func main() {
	Main(map[string]Role{"produce": produce, "member": member})
}

// The partition of each record is fixed: by the number its value begins with.
type byNumber struct{ partitions int }

func (b byNumber) Balance(message kafka.Message, partitions ...int) int {
	return partitions[message.WriterData.(int)%b.partitions]
}

// produce writes numbered records, round robin, and reports each acknowledgement, until `count` or SIGTERM.
//
// A writer sends one batch of a partition at a time, so its records stay in order; a batch sent again may be there twice.
func produce(ctx context.Context, s *Settings) error {
	var first error
	var mutex sync.Mutex
	places := make(chan struct{}, maxRecordsUnderWay)
	completed := func(messages []kafka.Message, err error) {
		for _, message := range messages {
			if err == nil {
				Report(Event{"event": "acknowledged", "number": message.WriterData, "partition": message.Partition, "offset": message.Offset})
			}
			<-places
		}
		mutex.Lock()
		defer mutex.Unlock()
		if first == nil {
			first = err
		}
	}
	writer := &kafka.Writer{
		Addr: kafka.TCP(s.Bootstrap...), Topic: s.Topic, Balancer: byNumber{s.Partitions}, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond, BatchBytes: int64(s.BatchBytes), MaxAttempts: 120, Async: true,
		WriteBackoffMin: 100 * time.Millisecond, WriteBackoffMax: 500 * time.Millisecond, Completion: completed,
	}
	for number := 0; number < s.Count && ctx.Err() == nil; number++ {
		places <- struct{}{}
		message := kafka.Message{Value: Value(number, s.Size), WriterData: number}
		if err := writer.WriteMessages(context.Background(), message); err != nil {
			return err
		}
		time.Sleep(s.Pause)
	}
	if err := writer.Close(); err != nil {
		return err
	}
	mutex.Lock()
	defer mutex.Unlock()
	return first
}

// member reads as one of a group, reports each record and commits at times; until SIGTERM.
func member(ctx context.Context, s *Settings) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: s.Bootstrap, Topic: s.Topic, GroupID: s.Group, StartOffset: kafka.FirstOffset, MaxBytes: 32 << 20,
		MaxWait: 200 * time.Millisecond, SessionTimeout: 10 * time.Second, HeartbeatInterval: 500 * time.Millisecond,
		MaxAttempts: 60, WatchPartitionChanges: true,
	})
	defer reader.Close()
	for {
		message, err := reader.FetchMessage(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		ReportRecord(int32(message.Partition), message.Offset, message.Value)
		if (message.Offset+1)%20 == 0 {
			if err := reader.CommitMessages(ctx, message); err != nil {
				Report(Event{"event": "commit refused", "error": err.Error()})
			}
		}
	}
}
