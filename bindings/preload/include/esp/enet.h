/* Sockets of ESP and EDP for programs that run under esprun: docs/sockets.md. */
#ifndef ESP_ENET_H
#define ESP_ENET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Address family: SOCK_STREAM is ESP, the Ethernet Streaming Protocol; SOCK_DGRAM is EDP, the
 * Ethernet Datagram Protocol. The protocol is 0; SOCK_DGRAM also accepts 1. */
#define AF_ENET 28
#define PF_ENET AF_ENET

/* Level of socket options. */
#define SOL_EP 285
/* int: the maximum number of bytes of a packet's payload, read only. */
#define EP_MTU 1
/* struct edp_stats or struct esp_stats, read only. */
#define EP_STATS 2

/* The port of programs that need only one. */
#define EP_DEFAULT_PORT 2805

/* Types of EDP's control packets for an echo. */
#define EDP_ECHO_REQUEST 1
#define EDP_ECHO_REPLY 2

#define ENET_ALEN 6

struct sockaddr_enet {
    uint16_t se_family;           /* AF_ENET */
    uint16_t se_port;             /* in network order; 0: any free one */
    uint32_t se_ifindex;          /* local interface; 0: any */
    uint8_t se_alen;              /* ENET_ALEN */
    uint8_t se_addr[ENET_ALEN];   /* MAC address */
    uint8_t se_pad;               /* 0 */
};

struct edp_stats {
    uint32_t sent;
    uint32_t send_errors;
    uint32_t received;
    uint32_t dropped;
};

struct esp_stats {
    uint32_t sent;
    uint32_t retransmitted;
    uint32_t send_errors;         /* always 0 */
    uint32_t received;
    uint32_t out_of_order;
    uint32_t dropped;
    uint32_t lost;                /* always 0 */
    uint32_t requests;            /* for retransmission; always 0 */
};

#ifdef __cplusplus
}
#endif

#endif
