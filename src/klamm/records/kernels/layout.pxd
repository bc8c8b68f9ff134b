# The names of layout.py as C constants; their meaning is documented there.

cdef enum:
    # Positions in the header of a batch, from the batch's first byte.
    BATCH_LENGTH_AT = 8
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    ATTRIBUTES_LOW_AT = 22
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORD_COUNT_AT = 57
    RECORDS_AT = 61
    LENGTH_OVERHEAD = 12

    # Bits of the attributes.
    CODEC_BITS = 0x07
    APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40
    SPECIAL_BITS = 0x37

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
    SPECIAL = 1
    FULL = 2
    DAMAGED = 3

    # State of a pass over batches, carried by the caller from call to call: twelve 64-bit integers. Compaction and recovery
    # share the first and those from FILE_AT on.
    INPUT_AT = 0
    OUTPUT_SIZE = 1
    SLOTS_USED = 2
    NEXT_OFFSET = 3
    RECORDS_READ = 4
    RECORDS_KEPT = 5
    KEEP_NEXT = 6
    FILE_AT = 7
    BYTES_SINCE_ENTRY = 8
    MAX_TIMESTAMP = 9
    MAX_TIMESTAMP_OFFSET = 10
    INDEX_ENTRIES = 11
    PASS_WORDS = 12

    # The words of recovery where they differ.
    EXPECTED_OFFSET = 1
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
    SHIFT = 4
    LEFT = 5
    SKIP = 6
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
    NOTE_WORDS = 3
    NOTED_MAX = 100
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
    MISPLACED = 2
    BEYOND = 3
    TRAILING = 4

    UNLOCKED_BYTES_MIN = 65536
