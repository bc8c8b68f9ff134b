// Group members: they read, commit what they read, and write down what they were given and what was taken from them.
'use strict'

const members = new Map()

const event = (member, what, generation) => {
  const held = [...member.owned].sort((a, b) => a - b)
  member.events.push([Date.now(), what, generation, held])
}

module.exports = kafka => ({
  async member_start(order) {
    const consumer = kafka(order).consumer({
      groupId: order.group,
      sessionTimeout: order.session_ms,
      rebalanceTimeout: order.poll_interval_ms,
      heartbeatInterval: 200,
      metadataMaxAge: 500,
      maxWaitTimeInMs: 100,
      allowAutoTopicCreation: false,
      retry: { initialRetryTime: 50, maxRetryTime: 200, retries: 60 },
    })
    const member = { consumer, owned: new Set(), events: [], seen: [], problems: [], alive: true }
    const dropped = () => {
      member.owned.clear()
      event(member, 'revoked', -1)
    }
    consumer.on(consumer.events.REBALANCING, dropped)
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      member.problems.push(String(payload.error))
      dropped()
    })
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      member.owned = new Set(payload.memberAssignment[order.topic] || [])
      event(member, 'assigned', -1) // kafkajs keeps the generation to itself
    })
    members.set(order.member, member)
    await consumer.connect()
    await consumer.subscribe({ topic: order.topic, fromBeginning: true })
    await consumer.run({
      autoCommitInterval: 100,
      eachBatch: async ({ batch, resolveOffset, heartbeat, commitOffsetsIfNecessary }) => {
        for (const message of batch.messages) {
          member.seen.push(`${batch.partition}:${message.offset}`)
          resolveOffset(message.offset)
        }
        await commitOffsetsIfNecessary()
        await heartbeat()
      },
    })
    return {}
  },

  async member_end(order) {
    const member = members.get(order.member)
    await member.consumer.disconnect()
    member.owned.clear()
    member.alive = false
    event(member, 'ended', -1)
    return { ended: true }
  },

  async members(order) {
    const shown = {}
    for (const name of order.members) {
      const { owned, events, seen, problems, alive } = members.get(name)
      shown[name] = { owned: [...owned].sort((a, b) => a - b), events, seen, problems, alive }
    }
    return { members: shown }
  },
})
