// Group members: they read, commit what they read, and write down what they were given and what was taken from them.
package main

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type member struct {
	client   *kgo.Client
	cancel   context.CancelFunc
	done     chan struct{}
	mu       sync.Mutex
	owned    map[int32]bool
	events   [][4]any
	seen     []string
	problems []string
}

var members = map[string]*member{}

func (m *member) event(what string) {
	_, generation := m.client.GroupMetadata()
	m.events = append(m.events, [4]any{time.Now().UnixMilli(), what, generation, m.held()})
}

func (m *member) held() []int32 {
	held := []int32{}
	for partition := range m.owned {
		held = append(held, partition)
	}
	sort.Slice(held, func(i, j int) bool { return held[i] < held[j] })
	return held
}

// A listener for each kind of change; `own` says whether the partitions are had from now on.
func (m *member) listener(what string, own bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, client *kgo.Client, changed map[string][]int32) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.client = client
		for _, partitions := range changed {
			for _, partition := range partitions {
				if own {
					m.owned[partition] = true
				} else {
					delete(m.owned, partition)
				}
			}
		}
		m.event(what)
	}
}

func memberStart(o *order) (answer, error) {
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(), "sticky": kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	m := &member{done: make(chan struct{}), owned: map[int32]bool{}, events: [][4]any{}, seen: []string{}, problems: []string{}}
	settings := []kgo.Opt{
		kgo.SeedBrokers(o.Bootstrap), kgo.ConsumerGroup(o.Group), kgo.ConsumeTopics(o.Topic), kgo.ClientID(o.Member),
		kgo.Balancers(balancers[o.Way]), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(time.Duration(o.SessionMs) * time.Millisecond), kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.RebalanceTimeout(time.Duration(o.PollIntervalMs) * time.Millisecond), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(m.listener("assigned", true)), kgo.OnPartitionsRevoked(m.listener("revoked", false)),
		kgo.OnPartitionsLost(m.listener("lost", false)),
	}
	if o.Instance != nil {
		settings = append(settings, kgo.InstanceID(*o.Instance))
	}
	client, err := kgo.NewClient(settings...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.mu.Lock()
	m.client, m.cancel = client, cancel
	m.mu.Unlock()
	members[o.Member] = m
	go m.run(ctx)
	return answer{}, nil
}

func (m *member) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		turn, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		fetches := m.client.PollFetches(turn)
		cancel()
		m.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) { m.seen = append(m.seen, fmt.Sprintf("%d:%d", r.Partition, r.Offset)) })
		m.mu.Unlock()
		if !fetches.Empty() {
			if err := m.client.CommitUncommittedOffsets(ctx); err != nil {
				m.mu.Lock()
				m.problems = append(m.problems, err.Error())
				m.mu.Unlock()
			}
		}
		m.client.AllowRebalance()
	}
}

func memberEnd(o *order) (answer, error) {
	m := members[o.Member]
	m.cancel()
	<-m.done
	m.client.CloseAllowingRebalance()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owned = map[int32]bool{}
	m.events = append(m.events, [4]any{time.Now().UnixMilli(), "ended", -1, []int32{}})
	return answer{"ended": true}, nil
}

func memberReports(o *order) (answer, error) {
	shown := map[string]any{}
	for _, name := range o.Members {
		m := members[name]
		m.mu.Lock()
		alive := true
		select {
		case <-m.done:
			alive = false
		default:
		}
		shown[name] = answer{
			"owned": m.held(), "events": append([][4]any{}, m.events...), "seen": append([]string{}, m.seen...),
			"problems": append([]string{}, m.problems...), "alive": alive,
		}
		m.mu.Unlock()
	}
	return answer{"members": shown}, nil
}
