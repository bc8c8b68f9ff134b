"""What the integers mean that kernels and their callers share: batch header positions, scratch arrays, stop reasons.

The compiled kernels take the same names from layout.pxd, where they are C constants: a Python name would be a
dictionary lookup per use. A test holds the two files equal.
"""

# Positions in the header of a batch, from the batch's first byte.
BATCH_LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
ATTRIBUTES_LOW_AT = 22
"""The low byte of the attributes; Kafka defines no bit of the high one."""
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORD_COUNT_AT = 57
RECORDS_AT = 61
LENGTH_OVERHEAD = 12
"""Bytes of a batch that its length does not count: base offset and the length itself."""

# Bits of the attributes.
CODEC_BITS = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
SPECIAL_BITS = 0x37
"""Compressed, transactional or control: no work for a pass over plain batches."""

# A parsed record: an array of eight integers.
TIMESTAMP_DELTA = 0
OFFSET_DELTA = 1
KEY_AT = 2
KEY_SIZE = 3
VALUE_AT = 4
VALUE_SIZE = 5
HEADERS_AT = 6
HEADER_COUNT = 7
RECORD_FIELDS = 8

# A parsed header of a record: an array of four integers.
NAME_AT = 0
NAME_SIZE = 1
HEADER_VALUE_AT = 2
HEADER_VALUE_SIZE = 3
HEADER_FIELDS = 4

# One value of an Arrow binary column: an array of two integers.
CELL_AT = 0
CELL_SIZE = 1
CELL_FIELDS = 2

# Why a pass over batches stopped.
END = 0
"""The bytes are used up; what is left is less than a batch."""
SPECIAL = 1
"""The next batch is not plain, or needs what a copy cannot give it."""
FULL = 2
"""The table has no room for the next batch's keys or its producer."""
DAMAGED = 3
"""The next batch's checksum or form does not hold."""

# State of a pass over batches, carried by the caller from call to call: twelve 64-bit integers. Compaction and recovery
# share the first and those from FILE_AT on.
INPUT_AT = 0
OUTPUT_SIZE = 1
SLOTS_USED = 2
NEXT_OFFSET = 3
RECORDS_READ = 4
RECORDS_KEPT = 5
KEEP_NEXT = 6
"""Index of the next offset in the list of batches whose header must stay."""
FILE_AT = 7
BYTES_SINCE_ENTRY = 8
MAX_TIMESTAMP = 9
MAX_TIMESTAMP_OFFSET = 10
INDEX_ENTRIES = 11
PASS_WORDS = 12

# The words of recovery where they differ.
EXPECTED_OFFSET = 1
"""The next batch must not begin before it."""
LEADER_EPOCH = 2
EPOCH_END_OFFSET = 3
PRODUCERS_NOTED = 4
BATCHES_PASSED = 5

# A slot of the table of producers: 32 words, free while BATCHES_NOTED is 0. From PRODUCER_BATCHES_AT on there are the
# last five batches, written round robin, five words per batch.
PRODUCER_ID = 0
PRODUCER_EPOCH = 1
EPOCH_CHANGED = 2
BATCHES_NOTED = 3
TRANSACTION_START = 4
PRODUCER_BATCHES_AT = 7
PRODUCER_WORDS = 32
PRODUCER_BATCHES = 5
FIRST_SEQUENCE = 0
LAST_SEQUENCE = 1
FIRST_OFFSET = 2
LAST_OFFSET = 3
BATCH_MAX_TIMESTAMP = 4
PRODUCER_BATCH_WORDS = 5

# A slot of the table of keys: two words of the key's hash, then its newest offset + 1 (0: free).
KEY_HASH = 0
KEY_HASH_2 = 1
KEY_OFFSET = 2
KEY_WORDS = 3

# State of the check of a produced batch, carried from piece to piece.
COUNT = 0
DONE = 1
FIELD = 2
BITS = 3
"""Bits of a varint that the last piece cut."""
SHIFT = 4
"""How many bits they are."""
LEFT = 5
"""Bytes left of the record."""
SKIP = 6
"""Bytes to step over: content of a key, value or header."""
HEADERS_LEFT = 7
BASE_TIMESTAMP = 8
OLDEST = 9
NEWEST = 10
KEYED = 11
LARGEST_TIMESTAMP = 12
CUT_TIMESTAMP_DELTA = 13
CUT_HAS_KEY = 14
NOTED = 15
CONSECUTIVE = 16
FIRST_NOTED_DELTA = 17
CUT_OFFSET_DELTA = 18
STAMPED = 19
NOTES_AT = 20
"""From here on three words per noted record: offset delta, whether its time is why it is noted, timestamp."""
NOTE_WORDS = 3
NOTED_MAX = 100
"""Records without key or outside of the allowed times that are named."""
CHECK_WORDS = 320

# The field of a record that comes next (FIELD).
SIZE_FIELD = 0
TIMESTAMP_FIELD = 1
OFFSET_FIELD = 2
KEY_FIELD = 3
VALUE_FIELD = 4
HEADER_COUNT_FIELD = 5
NAME_FIELD = 6
HEADER_VALUE_FIELD = 7
RECORD_END = 8

# What is wrong with a produced record; 0 is nothing.
BROKEN = 1
"""A record does not fit the bytes that should hold it."""
MISPLACED = 2
"""A record's offset delta is not its place in the batch."""
BEYOND = 3
"""A record's timestamp does not fit 64 bits."""
TRAILING = 4
"""Bytes are left after the records the header counts."""

UNLOCKED_BYTES_MIN = 65536
"""From so many bytes of records on, a kernel gives up the interpreter's lock while it works on them: below that,
getting the lock back may cost more than the work."""
