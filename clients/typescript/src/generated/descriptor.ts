// Written by scripts/generate.mjs. Do not edit.
export const descriptor: unknown = {
 "nested": {
  "tollkeeper": {
   "nested": {
    "v1": {
     "options": {
      "go_package": "tollkeeper/v1;tollkeeperv1",
      "java_multiple_files": true,
      "java_package": "tollkeeper.v1"
     },
     "nested": {
      "Tollkeeper": {
       "methods": {
        "Decide": {
         "requestType": "DecideRequest",
         "responseType": "DecideResponse"
        },
        "DecideStream": {
         "requestType": "DecideRequest",
         "requestStream": true,
         "responseType": "DecideResponse",
         "responseStream": true
        },
        "Commit": {
         "requestType": "CommitRequest",
         "responseType": "CommitResponse"
        },
        "Renew": {
         "requestType": "RenewRequest",
         "responseType": "RenewResponse"
        }
       }
      },
      "DecideRequest": {
       "fields": {
        "domain": {
         "type": "string",
         "id": 1
        },
        "calls": {
         "rule": "repeated",
         "type": "Call",
         "id": 2
        }
       }
      },
      "DecideResponse": {
       "fields": {
        "verdicts": {
         "rule": "repeated",
         "type": "Verdict",
         "id": 1
        }
       }
      },
      "Descriptor": {
       "fields": {
        "entries": {
         "rule": "repeated",
         "type": "Entry",
         "id": 1
        },
        "limit": {
         "type": "Override",
         "id": 2
        },
        "hitsAddend": {
         "type": "google.protobuf.UInt64Value",
         "id": 3
        },
        "isNegativeHits": {
         "type": "bool",
         "id": 4
        }
       },
       "nested": {
        "Entry": {
         "fields": {
          "key": {
           "type": "bytes",
           "id": 1
          },
          "value": {
           "type": "bytes",
           "id": 2
          }
         }
        },
        "Override": {
         "fields": {
          "requestsPerUnit": {
           "type": "uint32",
           "id": 1
          },
          "unit": {
           "type": "Limit.Unit",
           "id": 2
          },
          "unitMultiplier": {
           "type": "google.protobuf.UInt32Value",
           "id": 3
          }
         }
        }
       }
      },
      "Call": {
       "oneofs": {
        "_hits": {
         "oneof": [
          "hits"
         ]
        }
       },
       "fields": {
        "descriptors": {
         "rule": "repeated",
         "type": "Descriptor",
         "id": 1
        },
        "mode": {
         "type": "Mode",
         "id": 2
        },
        "hits": {
         "type": "uint64",
         "id": 3,
         "options": {
          "proto3_optional": true
         }
        },
        "hitsByKind": {
         "keyType": "string",
         "type": "uint64",
         "id": 4
        },
        "id": {
         "type": "string",
         "id": 5
        }
       },
       "nested": {
        "Mode": {
         "values": {
          "TAKE": 0,
          "CHECK": 1,
          "READ": 2,
          "DEBIT": 3,
          "PART": 4
         }
        }
       }
      },
      "Verdict": {
       "fields": {
        "code": {
         "type": "Code",
         "id": 1
        },
        "statuses": {
         "rule": "repeated",
         "type": "Status",
         "id": 2
        },
        "hold": {
         "type": "string",
         "id": 3
        },
        "error": {
         "type": "google.rpc.Status",
         "id": 4
        },
        "hits": {
         "type": "uint64",
         "id": 5
        }
       },
       "nested": {
        "Code": {
         "values": {
          "UNKNOWN": 0,
          "OK": 1,
          "OVER_LIMIT": 2
         }
        }
       }
      },
      "Status": {
       "oneofs": {
        "_used": {
         "oneof": [
          "used"
         ]
        },
        "_held": {
         "oneof": [
          "held"
         ]
        }
       },
       "fields": {
        "code": {
         "type": "Verdict.Code",
         "id": 1
        },
        "descriptorIndex": {
         "type": "uint32",
         "id": 2,
         "options": {
          "json_name": "descriptor"
         }
        },
        "rule": {
         "type": "string",
         "id": 3
        },
        "currentLimit": {
         "type": "Limit",
         "id": 4
        },
        "limitRemaining": {
         "type": "uint64",
         "id": 5
        },
        "durationUntilReset": {
         "type": "google.protobuf.Duration",
         "id": 6
        },
        "used": {
         "type": "uint64",
         "id": 7,
         "options": {
          "proto3_optional": true
         }
        },
        "held": {
         "type": "uint64",
         "id": 8,
         "options": {
          "proto3_optional": true
         }
        }
       }
      },
      "Limit": {
       "fields": {
        "name": {
         "type": "string",
         "id": 1
        },
        "requestsPerUnit": {
         "type": "uint64",
         "id": 2
        },
        "unit": {
         "type": "Unit",
         "id": 3
        },
        "unitMultiplier": {
         "type": "uint32",
         "id": 4
        }
       },
       "nested": {
        "Unit": {
         "values": {
          "UNKNOWN": 0,
          "SECOND": 1,
          "MINUTE": 2,
          "HOUR": 3,
          "DAY": 4,
          "MONTH": 5,
          "YEAR": 6,
          "WEEK": 7
         }
        }
       }
      },
      "CommitRequest": {
       "fields": {
        "domain": {
         "type": "string",
         "id": 1
        },
        "commits": {
         "rule": "repeated",
         "type": "Commit",
         "id": 2
        }
       }
      },
      "CommitResponse": {
       "fields": {
        "results": {
         "rule": "repeated",
         "type": "CommitResult",
         "id": 1
        }
       }
      },
      "Commit": {
       "oneofs": {
        "_used": {
         "oneof": [
          "used"
         ]
        }
       },
       "fields": {
        "hold": {
         "type": "string",
         "id": 1
        },
        "used": {
         "type": "uint64",
         "id": 2,
         "options": {
          "proto3_optional": true
         }
        },
        "usedByKind": {
         "keyType": "string",
         "type": "uint64",
         "id": 3
        },
        "end": {
         "type": "string",
         "id": 4
        }
       }
      },
      "CommitResult": {
       "fields": {
        "charges": {
         "rule": "repeated",
         "type": "CommittedCharge",
         "id": 1
        },
        "error": {
         "type": "google.rpc.Status",
         "id": 2
        }
       }
      },
      "CommittedCharge": {
       "fields": {
        "outcome": {
         "type": "Outcome",
         "id": 1
        },
        "held": {
         "type": "uint64",
         "id": 2
        },
        "used": {
         "type": "uint64",
         "id": 3
        }
       },
       "nested": {
        "Outcome": {
         "values": {
          "UNKNOWN": 0,
          "APPLIED": 1,
          "REPEATED": 2,
          "LATE": 3
         }
        }
       }
      },
      "RenewRequest": {
       "fields": {
        "domain": {
         "type": "string",
         "id": 1
        },
        "renewals": {
         "rule": "repeated",
         "type": "Renewal",
         "id": 2
        }
       }
      },
      "RenewResponse": {
       "fields": {
        "results": {
         "rule": "repeated",
         "type": "RenewResult",
         "id": 1
        }
       }
      },
      "Renewal": {
       "fields": {
        "commit": {
         "type": "Commit",
         "id": 1
        },
        "call": {
         "type": "Call",
         "id": 2
        }
       }
      },
      "RenewResult": {
       "fields": {
        "commit": {
         "type": "CommitResult",
         "id": 1
        },
        "verdict": {
         "type": "Verdict",
         "id": 2
        }
       }
      }
     }
    }
   }
  },
  "google": {
   "nested": {
    "protobuf": {
     "nested": {
      "Duration": {
       "fields": {
        "seconds": {
         "type": "int64",
         "id": 1
        },
        "nanos": {
         "type": "int32",
         "id": 2
        }
       }
      },
      "DoubleValue": {
       "fields": {
        "value": {
         "type": "double",
         "id": 1
        }
       }
      },
      "FloatValue": {
       "fields": {
        "value": {
         "type": "float",
         "id": 1
        }
       }
      },
      "Int64Value": {
       "fields": {
        "value": {
         "type": "int64",
         "id": 1
        }
       }
      },
      "UInt64Value": {
       "fields": {
        "value": {
         "type": "uint64",
         "id": 1
        }
       }
      },
      "Int32Value": {
       "fields": {
        "value": {
         "type": "int32",
         "id": 1
        }
       }
      },
      "UInt32Value": {
       "fields": {
        "value": {
         "type": "uint32",
         "id": 1
        }
       }
      },
      "BoolValue": {
       "fields": {
        "value": {
         "type": "bool",
         "id": 1
        }
       }
      },
      "StringValue": {
       "fields": {
        "value": {
         "type": "string",
         "id": 1
        }
       }
      },
      "BytesValue": {
       "fields": {
        "value": {
         "type": "bytes",
         "id": 1
        }
       }
      }
     }
    },
    "rpc": {
     "options": {
      "java_multiple_files": true,
      "java_outer_classname": "StatusProto",
      "java_package": "com.google.rpc"
     },
     "nested": {
      "Status": {
       "fields": {
        "code": {
         "type": "int32",
         "id": 1
        },
        "message": {
         "type": "string",
         "id": 2
        }
       }
      }
     }
    }
   }
  }
 }
};
