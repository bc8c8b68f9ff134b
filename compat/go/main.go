// The franz-go client as a servant of the test suite: one JSON order per line in, one JSON answer per line out.
// Bytes travel as base64; a failure answers {"error": text, "code": Kafka's number}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 30 * time.Second

// A header is the pair [name, value].
type header [2]*string

type record struct {
	Partition int32    `json:"partition"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
	Timestamp *int64   `json:"timestamp"`
}

type order struct {
	Op         string            `json:"op"`
	Bootstrap  string            `json:"bootstrap"`
	Topic      string            `json:"topic"`
	Partition  int32             `json:"partition"`
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs"`
	Acks       string            `json:"acks"`
	Codec      string            `json:"codec"`
	Idempotent bool              `json:"idempotent"`
	LingerMs   int               `json:"linger_ms"`
	Records    []record          `json:"records"`
	Offset     int64             `json:"offset"`
	Count      int               `json:"count"`
	Isolation  string            `json:"isolation"`
	Timestamp  int64             `json:"timestamp"`
	PauseMs    int               `json:"pause_ms"`

	Group          string   `json:"group"`
	Member         string   `json:"member"`
	Members        []string `json:"members"`
	Way            string   `json:"way"`
	Instance       *string  `json:"instance"`
	SessionMs      int      `json:"session_ms"`
	PollIntervalMs int      `json:"poll_interval_ms"`

	TransactionalIDs []string `json:"transactional_ids"`
	Transactions     int      `json:"transactions"`
	AbortEvery       int      `json:"abort_every"`
}

type answer map[string]any

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var o order
		var a answer
		if err = json.Unmarshal(line, &o); err == nil {
			a, err = obey(&o)
		}
		if err != nil {
			a = failure(err)
		}
		if err := out.Encode(a); err != nil {
			return
		}
	}
}

func obey(o *order) (answer, error) {
	switch o.Op {
	case "create":
		return create(o)
	case "delete":
		return remove(o)
	case "topics":
		return topics(o)
	case "produce":
		return produce(o)
	case "consume":
		return consume(o)
	case "ends":
		return ends(o)
	case "offset_for_time":
		return offsetForTime(o)
	case "stream_start":
		return streamStart(o)
	case "stream_stop":
		return streamStop()
	case "member_start":
		return memberStart(o)
	case "member_end":
		return memberEnd(o)
	case "members":
		return memberReports(o)
	case "transaction_loops":
		return transactionLoops(o)
	}
	return nil, fmt.Errorf("no such order: %s", o.Op)
}

func admin(o *order) (*kadm.Client, context.Context, context.CancelFunc, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(o.Bootstrap))
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	return kadm.NewClient(client), ctx, cancel, nil
}

func create(o *order) (answer, error) {
	adm, ctx, cancel, err := admin(o)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer adm.Close()
	configs := map[string]*string{}
	for name, value := range o.Configs {
		configs[name] = kadm.StringPtr(value)
	}
	_, err = adm.CreateTopic(ctx, o.Partitions, 1, configs, o.Topic)
	return answer{}, err
}

func remove(o *order) (answer, error) {
	adm, ctx, cancel, err := admin(o)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer adm.Close()
	_, err = adm.DeleteTopic(ctx, o.Topic)
	return answer{}, err
}

func topics(o *order) (answer, error) {
	adm, ctx, cancel, err := admin(o)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer adm.Close()
	found, err := adm.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]int{}
	for name, topic := range found {
		names[name] = len(topic.Partitions)
	}
	return answer{"topics": names}, nil
}

func producer(o *order) (*kgo.Client, error) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
	settings := []kgo.Opt{
		kgo.SeedBrokers(o.Bootstrap),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[o.Codec]),
		kgo.RequiredAcks(acks[o.Acks]),
		kgo.ProducerLinger(time.Duration(o.LingerMs) * time.Millisecond),
		kgo.ProducerBatchMaxBytes(20_000_000),
		kgo.BrokerMaxWriteBytes(40_000_000),
	}
	if !o.Idempotent {
		settings = append(settings, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	return kgo.NewClient(settings...)
}

func produce(o *order) (answer, error) {
	client, err := producer(o)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	// kgo's own delivery timeout counts from the record's timestamp, which here may be years ago.
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	results := make([]answer, len(o.Records))
	var wait sync.WaitGroup
	for i, r := range o.Records {
		out := &kgo.Record{Topic: o.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
		if r.Timestamp != nil {
			out.Timestamp = time.UnixMilli(*r.Timestamp)
		}
		for _, h := range r.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: *h[0], Value: decode(h[1])})
		}
		wait.Add(1)
		client.Produce(ctx, out, func(done *kgo.Record, err error) {
			defer wait.Done()
			if err != nil {
				results[i] = failure(err)
			} else {
				results[i] = answer{"offset": done.Offset}
			}
		})
	}
	wait.Wait()
	return answer{"results": results}, nil
}

func consume(o *order) (answer, error) {
	isolation := kgo.ReadUncommitted()
	if o.Isolation == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	start := map[string]map[int32]kgo.Offset{o.Topic: {o.Partition: kgo.NewOffset().At(o.Offset)}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(o.Bootstrap), kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(isolation),
		kgo.FetchMaxWait(500*time.Millisecond), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	records := []answer{}
	for len(records) < o.Count {
		fetches := client.PollFetches(ctx)
		for _, problem := range fetches.Errors() {
			if errors.Is(problem.Err, context.DeadlineExceeded) {
				return answer{"records": records}, nil
			}
			return nil, problem.Err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if len(records) < o.Count {
				records = append(records, shown(r))
			}
		})
	}
	return answer{"records": records}, nil
}

func ends(o *order) (answer, error) {
	adm, ctx, cancel, err := admin(o)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer adm.Close()
	first, err := adm.ListStartOffsets(ctx, o.Topic)
	if err != nil {
		return nil, err
	}
	last, err := adm.ListEndOffsets(ctx, o.Topic)
	if err != nil {
		return nil, err
	}
	a, _ := first.Lookup(o.Topic, o.Partition)
	b, _ := last.Lookup(o.Topic, o.Partition)
	return answer{"earliest": a.Offset, "latest": b.Offset}, errors.Join(a.Err, b.Err)
}

func offsetForTime(o *order) (answer, error) {
	adm, ctx, cancel, err := admin(o)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer adm.Close()
	found, err := adm.ListOffsetsAfterMilli(ctx, o.Timestamp, o.Topic)
	if err != nil {
		return nil, err
	}
	at, _ := found.Lookup(o.Topic, o.Partition)
	if at.Timestamp < 0 { // kadm answers with the end of the partition where nothing is that late
		return answer{"offset": -1}, at.Err
	}
	return answer{"offset": at.Offset}, at.Err
}

// Numbered records sent one after another in the background, and what was acknowledged where.
type stream struct {
	client   *kgo.Client
	stop     chan struct{}
	done     chan struct{}
	mu       sync.Mutex
	acked    [][2]int64
	failures []string
	sent     int64
}

var running *stream

func streamStart(o *order) (answer, error) {
	client, err := producer(o)
	if err != nil {
		return nil, err
	}
	s := &stream{client: client, stop: make(chan struct{}), done: make(chan struct{}), acked: [][2]int64{}, failures: []string{}}
	running = s
	topic, partition, pause := o.Topic, o.Partition, time.Duration(o.PauseMs)*time.Millisecond
	go func() {
		defer close(s.done)
		for {
			select {
			case <-s.stop:
				return
			case <-time.After(pause):
			}
			number := s.sent
			s.sent++
			out := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(strconv.FormatInt(number, 10))}
			client.Produce(context.Background(), out, func(done *kgo.Record, err error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				if err != nil {
					s.failures = append(s.failures, err.Error())
				} else {
					s.acked = append(s.acked, [2]int64{number, done.Offset})
				}
			})
		}
	}()
	return answer{}, nil
}

func streamStop() (answer, error) {
	s := running
	close(s.stop)
	<-s.done
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	err := s.client.Flush(ctx)
	s.client.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return answer{"acked": s.acked, "failures": s.failures, "sent": s.sent}, err
}

func shown(r *kgo.Record) answer {
	headers := [][2]any{}
	for _, h := range r.Headers {
		headers = append(headers, [2]any{h.Key, h.Value})
	}
	return answer{
		"offset": r.Offset, "timestamp": r.Timestamp.UnixMilli(), "key": r.Key, "value": r.Value, "headers": headers,
	}
}

func failure(err error) answer {
	code := int16(-1)
	var known *kerr.Error
	if errors.As(err, &known) {
		code = known.Code
	}
	return answer{"error": err.Error(), "code": code}
}

func decode(text *string) []byte {
	if text == nil {
		return nil
	}
	var bytes []byte
	quoted, _ := json.Marshal(*text)
	_ = json.Unmarshal(quoted, &bytes)
	return bytes
}
